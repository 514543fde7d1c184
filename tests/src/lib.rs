//! The conformance suite of `coordination`.
//!
//! * [`harness`] starts, pauses, cuts off and kills servers and client processes.
//! * [`checks`] says what must hold, as plain async functions over a harness.
//! * [`faults`] says what must hold under a fault, where that is the same on every backend.
//! * `tooz-inventory.md` says which of them stand for the tests of Tooz.
//! * `tests/*.rs` run the checks, one file per backend.
//!
//! Nothing here is published.

pub mod checks;
pub mod faults;
pub mod harness;
mod inventory;
