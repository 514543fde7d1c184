//! Rows of the fault matrix (contract, part 3) that read the same on every backend.
//!
//! A row is a plain function over a [`Site`]; `tests/faults_*.rs` give it a store and a name. What a
//! row needs of one backend only is in that backend's test file.

pub mod crash;
pub mod guards;
pub mod identity;
pub mod many;
pub mod matrix;
pub mod pauses;
mod process;
mod site;

pub use process::{Grant, Lost, NotHeld, Process};
pub use site::{HEARTBEAT, SCHEDULING, Site, deadline_after};
