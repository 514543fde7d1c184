//! What a function was given belongs to its body, in whatever edition: it is dropped as in a plain function, and before the
//! lock is released.
//!
//! The functions are in `drops/functions.rs`, which is compiled here and, by the crate `coordination-edition-2021`, as
//! users of that edition compile it.

use super::*;

mod functions;

#[tokio::test(flavor = "multi_thread")]
async fn as_in_a_plain_function() -> Result {
    let c = connect("drops").await?;
    functions::compare(&c).await
}
