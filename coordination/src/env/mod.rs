//! What the library asks of its surroundings: the time, random numbers, the addresses of hosts, and somewhere
//! to run tasks.
//!
//! Above the stores nothing else reads the machine's clocks, draws random numbers or starts a session's tasks; timers
//! are tokio's, which a test can pause. In a build for users the machine answers, directly. With `--cfg
//! coordination_internals`, which only this project's own tests set, a simulation can install itself here and answer
//! for the threads on which it runs. This module knows no more of a simulation than the trait `Simulated`.

// Without it, the library would be built for an unknown system: its clock would stand still in suspend, and nobody would say so.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(linux_kernel)))]
compile_error!(
    "the build script of this crate (build.rs) was not run: it sets `--cfg linux_kernel --cfg file_store`"
);
#[cfg(all(any(target_os = "freebsd", target_vendor = "apple"), not(file_store)))]
compile_error!("the build script of this crate (build.rs) was not run: it sets `--cfg file_store`");

pub(crate) mod blocking;
mod host_clock;
#[cfg(feature = "postgres")]
pub(crate) mod keepalive;
#[cfg(feature = "redis")]
pub(crate) mod local_socket;
#[cfg(feature = "_network")]
pub(crate) mod names;
mod process;
mod real;
#[cfg(all(coordination_internals, feature = "memory"))]
mod simulated;

pub(crate) use host_clock::HostClock;
pub(crate) use process::{Process, Unforked};
pub(crate) use real::{COUNTS_SUSPEND, OwnedFile, is_plain};
#[cfg(not(all(coordination_internals, feature = "memory")))]
pub(crate) use real::{boot_nanos, rng, spawn, unix_micros};
#[cfg(all(coordination_internals, feature = "memory"))]
pub(crate) use simulated::{
    Simulated, Task, boot_nanos, install, rng, spawn, uninstall, unix_micros,
};
