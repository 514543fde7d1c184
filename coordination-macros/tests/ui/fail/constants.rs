#![allow(unused)]

use coordination::{Error, synchronized};

struct Volume;

impl Volume {
    #[synchronized("<Self::SHELF>")]
    async fn not_in_the_type(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[synchronized("<MISSING>-<limits::LARGEST>")]
async fn not_in_scope() -> Result<(), Error> {
    Ok(())
}

fn main() {}
