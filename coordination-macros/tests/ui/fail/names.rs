#![allow(unused)]

use coordination::{Error, synchronized};

const NAME: &str = "a";

#[synchronized(NAME)]
async fn constant() -> Result<(), Error> {
    Ok(())
}

#[synchronized(concat!("a", "b"))]
async fn macro_call() -> Result<(), Error> {
    Ok(())
}

#[synchronized(config::NAME)]
async fn path() -> Result<(), Error> {
    Ok(())
}

#[synchronized("<Limit>")]
async fn not_in_scope() -> Result<(), Error> {
    Ok(())
}

#[synchronized(name = 5)]
async fn a_number() -> Result<(), Error> {
    Ok(())
}

#[synchronized(shared(NAME))]
async fn shared_constant() -> Result<(), Error> {
    Ok(())
}

#[synchronized(shared("a"), permits = 3)]
async fn some_shared_and_permits() -> Result<(), Error> {
    Ok(())
}

#[synchronized(shared("a"), shared)]
async fn some_shared_and_all() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", map_err)]
async fn mapped_by_nothing() -> Result<(), String> {
    Ok(())
}

#[synchronized("a", map_err = String::len)]
async fn mapped_to_something_else() -> Result<(), String> {
    Ok(())
}

#[synchronized("a", map_err = |error| format!("{id}: {error}"))]
async fn mapped_with_a_parameter(id: u32) -> Result<(), String> {
    Ok(())
}

/// What `#[tokio::test]` above makes of an `async fn`.
#[synchronized("a")]
fn test() -> Result<(), Error> {
    let body = async { Ok(()) };
    return runtime().block_on(body);
}

struct Runtime;

impl Runtime {
    fn block_on<F: Future>(&self, _: F) -> F::Output {
        panic!()
    }
}

fn runtime() -> Runtime {
    Runtime
}

#[synchronized(name = "vol-<id>")]
async fn a_template(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized(shared(name = "vol-{id}"))]
async fn a_shared_template(id: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
