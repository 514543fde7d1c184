//! `Cargo.toml` calls the library `locks`, which the attribute has to be told.

use locks::{Error, synchronized};

#[synchronized("vol-<id>")]
pub fn untold(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("vol-<id>", crate = locks)]
pub fn told(id: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
