//! What the library asks of its surroundings: the time, random numbers, and somewhere to run tasks.
//!
//! Nothing else in the library reads a clock, draws a number or starts a session's task, so whoever answers these
//! questions decides how everything above goes. In a build for users they are answered by the machine, directly. With
//! `--cfg coordination_internals`, which only this project's own tests set, a simulation can install itself here and answer for the
//! threads on which it runs. This module knows nothing of it beyond the trait `Simulated`.

mod real;
#[cfg(all(coordination_internals, feature = "memory"))]
mod simulated;

#[cfg(not(all(coordination_internals, feature = "memory")))]
pub(crate) use real::{boot_nanos, rng, spawn, unix_micros};
#[cfg(all(coordination_internals, feature = "memory"))]
pub(crate) use simulated::{
    Simulated, Task, boot_nanos, install, rng, spawn, uninstall, unix_micros,
};
