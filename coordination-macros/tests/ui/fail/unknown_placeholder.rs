#![allow(unused)]

use coordination::{Error, synchronized};

struct Volume {
    id: u32,
}

impl Volume {
    #[synchronized("vol-<self.id>-<idd>-{gibs.len()}")]
    async fn resize(&self, id: u32, (gib, _): (u64, u64)) -> Result<(), Error> {
        Ok(())
    }
}

#[synchronized("vol-<self.id>")]
async fn no_method(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("vol-<limit>")]
async fn no_parameters() -> Result<(), Error> {
    Ok(())
}

fn main() {}
