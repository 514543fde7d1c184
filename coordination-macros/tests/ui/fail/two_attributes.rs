#![allow(unused)]

use coordination::synchronized as locked;
use coordination::{Error, synchronized};

#[synchronized("a")]
#[synchronized("b")]
async fn two() -> Result<(), Error> {
    Ok(())
}

#[coordination::synchronized("a", shared)]
#[allow(unused)]
#[coordination::synchronized("b-<id>")]
fn in_a_thread(id: u32) -> Result<(), Error> {
    Ok(())
}

#[locked("a")]
#[locked("b")]
async fn by_another_name() -> Result<(), Error> {
    Ok(())
}

fn main() {}
