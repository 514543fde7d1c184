//! A function's parameters belong to its body, in every edition: they are dropped as in a plain function, and before
//! the lock is released.
//!
//! The functions are in `drops/functions.rs`. That file is compiled here, and also by the crate
//! `coordination-edition-2021`, with that edition.

use super::*;

mod functions;

#[tokio::test(flavor = "multi_thread")]
async fn as_in_a_plain_function() -> Result {
    let c = connect("drops").await?;
    functions::compare(&c).await
}
