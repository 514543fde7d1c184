//! Tests `#[synchronized]` in a crate of edition 2021. The macro's own crate is written in edition 2024, in which
//! temporaries of a function's last expression are dropped earlier than in edition 2021. The macro has to keep the
//! order of the crate that uses it.

use coordination::{Coordinator, Error};

#[path = "../../../tests/suite/gate/macros/drops/functions.rs"]
mod functions;

#[tokio::test(flavor = "multi_thread")]
async fn as_in_a_plain_function() -> Result<(), Error> {
    functions::compare(&Coordinator::connect("memory://drops-2021").await?).await
}

/// The macro turns the function's body into a future. This future has to be able to borrow from all arguments, as the
/// future of an `async fn` is in every edition.
#[tokio::test]
async fn lifetimes_are_captured() -> Result<(), Error> {
    #[coordination::synchronized("drops-<first>", coordinator = c)]
    async fn borrows<'a, T: AsRef<str> + ?Sized>(
        c: &Coordinator,
        first: &str,
        rest: &'a T,
    ) -> Result<&'a str, Error> {
        Ok(&rest.as_ref()[first.len()..])
    }
    let c = Coordinator::connect("memory://lifetimes-2021").await?;
    assert_eq!(borrows(&c, "a", "bcd").await?, "cd");
    c.stop().await
}
