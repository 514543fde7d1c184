//! The conformance suite of `coordination`.
//!
//! * [`bounds`] says how long operations may take according to the clauses.
//! * [`harness`] starts, pauses, cuts off and kills servers and client processes.
//! * [`mod@stores`] has the tables of stores and of settings of stores.
//! * [`checks`] checks the guarantees, as plain async functions over a store under test.
//! * [`faults`] checks the guarantees under faults that are the same on several stores.
//! * [`store_suite`] runs the library's own suite for stores.
//! * [`chaos`] lets several processes contend while servers, processes and networks fail, and checks their histories.
//! * [`work_model`] compares random calls on a work queue with a model.
//! * `tooz-inventory.md` lists which checks correspond to the tests of Tooz.
//! * `tests/suite` is the one test program that runs all this: `tests/run` runs its folder `gate`, `tests/soak` its
//!   folder `soak`.
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
pub mod work_model;
