//! All tests that need servers, client processes or more than one crate. They are one program, because linking every
//! store's driver takes long and is done only once this way.
//!
//! `tests/run` runs what is in [`gate`], `tests/soak` what is in [`soak`]. The faults of a store are all in [`faults`], in modules
//! of the same two names.

mod faults;
mod gate;
mod soak;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;

/// Path of the program `src/bin/worker`, which the tests start as a client process.
const WORKER: &str = env!("CARGO_BIN_EXE_worker");
