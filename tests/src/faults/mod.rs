//! Rows of the fault matrix, `docs/faults.md`, whose test is the same on several stores.
//!
//! A row is a plain function over a [`Site`], or, if it interrupts operations of the checks, over a store of the
//! checks. [`fault_rows!`](crate::fault_rows) lists the rows and makes tests of them; the folder of a store in
//! `tests/tests/suite/faults` invokes it. Rows that only one store has are in its own folder.

pub mod clock;
pub mod connecting;
pub mod crash;
pub mod cuts;
pub mod dropped;
pub mod guards;
pub mod identity;
pub mod late;
pub mod many;
pub mod matrix;
pub mod named;
pub mod network;
pub mod operator;
pub mod paused;
pub mod pauses;
mod process;
mod rows;
pub mod server;
pub mod silent;
mod site;
pub mod tls;
mod told;

pub use process::{Grant, Lost, NotHeld, Process};
pub use rows::on_store;
pub use silent::Apart;
pub use site::{HEARTBEAT, Site};
pub use told::{assert_told, assert_told_within};

pub use crate::bounds::{LONG, SCHEDULING};
