use coordination::{Error, synchronized};

#[synchronized("a", coordinator = name)]
async fn not_a_coordinator(name: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
