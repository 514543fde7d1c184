//! One fault, one error: the function is still there for those who call it.

use coordination::{Error, synchronized};

struct Volume;

impl Volume {
    #[synchronized("a", timeout = "soon")]
    async fn resize(&self, gib: u64) -> Result<u64, Error> {
        Ok(gib)
    }
}

async fn call() -> Result<u64, Error> {
    Volume.resize(1).await
}

fn main() {
    drop(call());
}
