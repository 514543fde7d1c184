//! Names that the user gave to something else do not reach the generated code.

#![allow(dead_code, non_camel_case_types, non_snake_case, unused_macros)]

mod std {}
mod core {}

struct Some;
struct Ok;
struct Option;
struct String;
struct Duration;

macro_rules! format {
    () => {};
}

type Result<T> = ::std::result::Result<T, ::coordination::Error>;

#[::coordination::synchronized("a-<id>", "b", timeout = "5s")]
async fn future(id: u8) -> Result<u8> {
    ::core::result::Result::Ok(id)
}

#[::coordination::synchronized("a-<id>", timeout = "5s")]
fn thread(id: u8) -> Result<u8> {
    ::core::result::Result::Ok(id)
}

fn main() {
    drop(future(1));
    let _ = thread;
}
