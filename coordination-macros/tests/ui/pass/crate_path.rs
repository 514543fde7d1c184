//! The library can be reached under another name, for macros of other crates.

mod facade {
    pub use coordination as locks;
}

use facade::locks::{Error, synchronized};

#[synchronized("a-<id>", crate = crate::facade::locks)]
async fn future(id: u8) -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", "b", crate = facade::locks, guard = guards)]
fn thread() -> Result<usize, Error> {
    Ok(guards.len())
}

fn main() {
    drop(future(1));
    let _ = thread;
}
