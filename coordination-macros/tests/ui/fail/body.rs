//! Mistakes in a body are shown where they are.

use coordination::{Error, synchronized};

#[synchronized("a")]
async fn wrong_type() -> Result<u32, Error> {
    Ok("text")
}

#[synchronized("a")]
async fn no_value() -> Result<u32, Error> {
    let _ = 1;
}

#[synchronized("a")]
fn blocking() -> Result<u32, Error> {
    Ok("text")
}

#[synchronized("a-<id>")]
async fn moved_twice(id: String) -> Result<String, Error> {
    drop(id);
    Ok(id)
}

fn main() {}
