#![allow(unused)]

use coordination::{Error, synchronized};

#[synchronized("")]
async fn empty() -> Result<(), Error> {
    Ok(())
}

#[synchronized("vol-<id")]
async fn not_closed(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("vol-{id")]
async fn brace_not_closed(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("a > b")]
async fn not_opened() -> Result<(), Error> {
    Ok(())
}

#[synchronized("<>-<.id>-<id+1>-<id.>-<id.pow(2)>")]
async fn paths(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized(r#"{map["key"]}-{map[]}-{map[key}-{map.0x1}"#)]
async fn keys(map: &[u32]) -> Result<(), Error> {
    Ok(())
}

#[synchronized("{id:>width$}-{id:.*}-{id:>1$}")]
async fn specs(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("<id:>8>-<Id::next()>-<id as u8>")]
async fn others(id: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
