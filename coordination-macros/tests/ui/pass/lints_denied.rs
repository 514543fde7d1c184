//! The generated code gives no reason to complain, whatever is denied.

#![deny(warnings, missing_docs, unused, future_incompatible, nonstandard_style, rust_2018_idioms)]
#![deny(let_underscore_drop, single_use_lifetimes, trivial_casts, trivial_numeric_casts)]
#![deny(unreachable_pub, unused_lifetimes, unused_qualifications, unused_results)]
#![deny(clippy::all)]
#![forbid(unsafe_code)]

use async_trait::async_trait;
use coordination::{Coordinator, Error, synchronized};

/// A forwarding body.
#[synchronized("<f_name>")]
pub async fn forward() -> Result<u8, Error> {
    diverge(true).await
}

/// A body that has no value.
#[synchronized("<f_name>")]
pub async fn diverge(_flag: bool) -> Result<u8, Error> {
    panic!("never called")
}

/// A body that never ends, in a thread.
#[synchronized("<f_name>", timeout = "0")]
pub fn endless() -> Result<u8, Error> {
    loop {
        std::thread::yield_now();
    }
}

/// Inner attributes and an unused parameter.
#[synchronized("a-<id>", "b", guard = _guards)]
pub async fn inner(id: u8, mut count: u8) -> Result<u8, Error> {
    #![allow(unused_assignments)]
    count = 3;
    count = 4;
    Ok(count)
}

/// A method.
#[async_trait]
pub trait Store {
    /// Stores.
    async fn put(&mut self, pair: (u8, u8)) -> Result<u8, Error>;
    /// Stores more.
    async fn add(&mut self, key: u8, pair: (u8, u8), spare: u8) -> Result<u8, Error>;
}

#[async_trait]
impl Store for Coordinator {
    #[synchronized("<a>", coordinator = self, timeout = "1m", on_lost = "finish")]
    async fn put(&mut self, (a, b): (u8, u8)) -> Result<u8, Error> {
        if a == b {
            return Ok(a);
        }
        self.put((b, b)).await
    }

    #[synchronized("all", coordinator = self)]
    async fn add(&mut self, mut key: u8, (a, _): (u8, u8), _: u8) -> Result<u8, Error> {
        key += a;
        Ok(key)
    }
}

/// Lone expressions, and parameters that only the name and the arguments use.
#[synchronized("a-<id>", timeout = limit, permits = count, coordinator = coordinator)]
pub async fn lone(
    coordinator: &Coordinator,
    id: u8,
    limit: std::time::Duration,
    count: u32,
    _: u8,
    #[expect(unused_variables)] spare: u8,
) -> Result<u8, Error> { Ok(1) }

/// The same in a thread.
#[synchronized("a-<id>")]
pub fn lone_thread(id: u8) -> Result<u8, Error> { Ok(1) }

fn main() {
    drop(forward());
    drop(inner(1, 2));
}
