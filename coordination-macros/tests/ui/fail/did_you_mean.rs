#![allow(unused)]

use coordination::{Error, synchronized};

struct Share {
    r#type: String,
}

#[synchronized("share-<share.type>")]
async fn keyword(share: &Share) -> Result<(), Error> {
    Ok(())
}

#[synchronized("share-<share.r#type>")]
async fn raw(share: &Share) -> Result<(), Error> {
    Ok(())
}

#[synchronized("vol-<volmue>", time_out = "5s", gaurd = guard)]
async fn misspelt(volume: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("<fname>-<other>", colour = "red")]
async fn nothing_is_near(volume: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
