use coordination::{Error, synchronized};

#[synchronized("a", timeout = "soon")]
async fn no_number() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout = "5 d")]
async fn no_such_unit() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout = "-1s")]
async fn negative() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout = 5)]
async fn not_a_string() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout = seconds)]
async fn not_a_duration(seconds: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
