//! All tests that need servers, client processes or more than one crate; one program, as each has to be linked with every
//! store's driver.
//!
//! What is in [`gate`] is run by `tests/run`, what is in [`soak`] by `tests/soak`.

mod gate;
mod soak;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;

/// A client process: `src/bin/worker`.
const WORKER: &str = env!("CARGO_BIN_EXE_worker");
