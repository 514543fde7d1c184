use coordination::synchronized;

#[derive(Debug)]
enum Failure {
    Own,
}

type Outcome<T> = Result<T, Failure>;

#[synchronized("a")]
async fn plain() -> Result<(), Failure> {
    Err(Failure::Own)
}

#[synchronized("a")]
async fn alias() -> Outcome<()> {
    Ok(())
}

#[synchronized("a")]
fn blocking() -> Outcome<()> {
    Ok(())
}

#[synchronized("a")]
async fn of_another_crate() -> std::io::Result<()> {
    Ok(())
}

fn main() {}
