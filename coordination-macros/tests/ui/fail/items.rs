use coordination::{Error, synchronized};

#[synchronized("a")]
struct Volume;

#[synchronized("a")]
const fn constant() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a")]
extern "C" fn foreign() -> Result<(), Error> {
    Ok(())
}

trait Store {
    #[synchronized("a")]
    async fn put(&self) -> Result<(), Error>;
}

fn main() {}
