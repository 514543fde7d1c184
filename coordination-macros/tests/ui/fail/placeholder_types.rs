#![allow(unused)]

use coordination::{Error, synchronized};

struct Share {
    id: u32,
}

#[synchronized("<share>")]
async fn not_displayed(share: Share) -> Result<(), Error> {
    Ok(())
}

#[synchronized("<share.name>")]
async fn no_field(share: Share) -> Result<(), Error> {
    Ok(())
}

#[synchronized("<share.render()>")]
async fn no_method(share: Share) -> Result<(), Error> {
    Ok(())
}

#[synchronized("{share.id:q}")]
async fn no_format(share: Share) -> Result<(), Error> {
    Ok(())
}

fn main() {}
