//! The conformance suite of `coordination`.
//!
//! * [`bounds`] says how long what a clause bounds may take.
//! * [`harness`] starts, pauses, cuts off and kills servers and client processes.
//! * [`mod@stores`] has the tables of what is tested: stores, and settings of stores.
//! * [`checks`] says what must hold, as plain async functions over a harness.
//! * [`faults`] says what must hold under a fault, where that is the same on every backend.
//! * [`store_suite`] says where the library's own suite for stores runs.
//! * [`chaos`] lets several processes contend while everything is broken, and judges what they saw.
//! * `tooz-inventory.md` says which of them stand for the tests of Tooz.
//! * `tests/suite` is the one program that runs all this: its folder `gate` by `tests/run`, its folder `soak` by `tests/soak`.
//!
//! Nothing here is published.

#[cfg(not(any(coordination_internals, doc)))]
compile_error!(
    "this needs the flags of tests/features: `. tests/features && cargo test \"${everything[@]}\"`"
);

pub mod bounds;
pub mod chaos;
pub mod checks;
pub mod faults;
pub mod harness;
mod inventory;
pub mod store_suite;
pub mod stores;
