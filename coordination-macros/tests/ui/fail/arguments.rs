#![allow(unused)]

use coordination::{Error, synchronized};

#[synchronized]
async fn no_arguments() -> Result<(), Error> {
    Ok(())
}

#[synchronized(timeout = "5s")]
async fn no_template() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", colour = "red")]
async fn unknown() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout = "5s", guard = g, timeout = "6s")]
async fn twice() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", timeout)]
async fn no_value() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a" "b")]
async fn no_comma() -> Result<(), Error> {
    Ok(())
}

#[synchronized(b"a", 5)]
async fn not_templates() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", on_lost = "panic")]
async fn on_lost() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", on_lost = cancel)]
async fn on_lost_without_quotes() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", guard = "g")]
async fn guard() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a-<id>", guard = id)]
async fn hidden_parameter(id: u32) -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", shared = true)]
async fn shared_with_a_value() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", shared, shared)]
async fn shared_twice() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", permits)]
async fn permits_without_a_value() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", shared, permits = 3)]
async fn shared_and_permits() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", permits = 3, shared)]
async fn permits_and_shared() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a" shared)]
async fn no_comma_before_shared() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", crate = "locks")]
async fn crate_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", guard = r#type)]
async fn hidden_raw_parameter(r#type: u32) -> Result<(), Error> {
    Ok(())
}

fn main() {}
