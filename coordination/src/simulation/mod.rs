//! A world to test in: one store, many clients, a network between them, and time under control.
//!
//! Not part of the public API: it exists only in builds with `--cfg coordination_internals`, for this project's own
//! tests (`tests/crates/simulation`, described in `docs/testing.md`).
//!
//! # How it works
//!
//! Everything runs in one thread, on tokio's paused clock. While a [`Run`] lasts, it has taken over the library's
//! `world` in that thread, and is the registry's store `simulation://`. Each [`Client`] stands for a process. During
//! a poll of one of its tasks it is the client that is running, so that [`BootInstant`](crate::BootInstant) shows
//! *its* clock; while it is paused, none of its tasks is polled. Between a client and the store (`server`) lies the
//! `network`, a decorator of the memory backend: each call becomes a request and a reply, which may be late or lost,
//! and a request may arrive twice. Once a request is sent, dropping the call does not stop it. Notifications may be
//! late, lost or early, and who observes a queue may be answered as of an older moment. The store has leases, which the
//! memory backend does not have, and can end a session early, restart, or lose all its data.
//!
//! All random numbers, here and in the library, come from one seed. So a seed stands for a run, which can be
//! repeated.
//!
//! # What it is not
//!
//! tokio's timers go on while a single client is suspended; only its clocks show the suspend. Timers tick in
//! milliseconds, so shorter times cannot be told apart. There is only one thread.

mod client;
mod contents;
mod network;
mod run;
mod server;

use rand::Rng;

use crate::backend::registry;
use crate::env::{self, Simulated, Task};

use client::Within;
pub use client::{Client, Clocks, Link};
pub use run::{moment, nanos};
pub use server::{Room, Traits, Weather, World};

/// The names that `COORDINATION_CANARY` takes. Each makes the library make one mistake on purpose.
pub const CANARIES: &[&str] = crate::canary::NAMES;

/// The wall clock at the start of each run: some day in 2026, in microseconds.
const WALL_START: u64 = 1_780_000_000_000_000;

/// A run of the simulation in this thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Run(());

impl Run {
    /// Begins a run: from here on this thread has no clock and no randomness but those of the simulation.
    ///
    /// # Panics
    ///
    /// When there is one already.
    pub fn begin(seed: u64) -> Self {
        run::begin(seed);
        env::install(&Surroundings);
        registry::offer_simulated(&network::DESCRIPTOR);
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        env::uninstall();
        run::end();
    }
}

/// What the library sees instead of the machine, in a thread that has a run.
struct Surroundings;

impl Simulated for Surroundings {
    fn boot_nanos(&self) -> u64 {
        let elapsed = nanos();
        run::client().map_or(elapsed, |client| client.boot_nanos(elapsed))
    }

    fn unix_micros(&self) -> u64 {
        let now = WALL_START + nanos() / 1_000;
        run::client().map_or(now, |client| client.wall_micros(now))
    }

    fn host(&self) -> u64 {
        run::client().map_or(0, |client| client.host())
    }

    fn random(&self) -> u64 {
        run::with(|run| run.random.next_u64())
            .expect("these are a thread's surroundings only while it has a run")
    }

    fn within(&self, task: Task) -> Task {
        Box::pin(Within::new(run::client(), task))
    }
}
