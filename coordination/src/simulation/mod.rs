//! A world to test in: one store, many clients, a network between them, and time under control.
//!
//! Not part of the public API: it exists only in builds with `--cfg coordination_internals`, for this project's own
//! tests (`tests/simulation`, described in `docs/testing.md`).
//!
//! # How it works
//!
//! Everything runs in one thread, on tokio's paused clock. Each [`Client`] is what a process would be: its tasks are
//! polled `within` it, so that [`BootInstant`](crate::BootInstant) shows *its* clock, and not at all while it is
//! paused. Between a client and the store (`server`) lies the `network`, a decorator of the memory backend: each call
//! becomes a request and a reply on their way, out of the caller's hands, which may be late or lost; a request may
//! come twice. Notifications may be late, lost or early. The store has leases, which the memory backend has not, and can
//! end a session early, restart, or lose all its data.
//!
//! Whatever is random, in here and in the library, comes from one seed. So a seed is a run, and can be run again.
//!
//! # What it is not
//!
//! tokio's timers go on while a single client is suspended; only its clocks tell. They tick in milliseconds: nothing
//! that is shorter can be told apart. Threads do not exist.

mod client;
mod network;
mod server;

use std::cell::RefCell;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::backend::registry;
use crate::world::{self, Simulated, Task};

pub use client::{Client, Clocks, Link};
pub use server::{Traits, Weather, World};

/// The names that `COORDINATION_CANARY` takes: mistakes that the library makes then, on purpose.
pub const CANARIES: &[&str] = crate::canary::NAMES;

/// The wall clock at the start of each run: some day in 2026, in microseconds.
const WALL_START: u64 = 1_780_000_000_000_000;

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The run of this thread.
struct Current {
    start: Instant,
    random: StdRng,
    client: Option<Arc<Client>>,
    /// The last that [`moment`] gave.
    moment: u64,
}

fn with<T>(ask: impl FnOnce(&mut Current) -> T) -> Option<T> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map(ask))
}

/// Ends the run of this thread when it goes.
#[derive(Debug)]
pub struct Run(());

impl Run {
    /// Begins a run: from here on this thread has no clock and no randomness but those of the simulation.
    ///
    /// # Panics
    ///
    /// When there is one already.
    pub fn begin(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let current = Current { start: Instant::now(), random, client: None, moment: 0 };
        let before = CURRENT.replace(Some(current));
        assert!(before.is_none(), "a thread has one run at a time");
        world::install(&Surroundings);
        registry::offer_simulated(&network::DESCRIPTOR);
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        world::uninstall();
        CURRENT.set(None);
    }
}

/// Nanoseconds since the run began, by no client's clock.
pub fn nanos() -> u64 {
    with(|current| current.start.elapsed().as_nanos() as u64).unwrap_or_default()
}

/// The same for a history: no two are alike, so that what happens within one tick of the clock is in its order too.
pub fn moment() -> u64 {
    let now = nanos();
    with(|current| {
        current.moment = now.max(current.moment + 1);
        current.moment
    })
    .unwrap_or(now)
}

/// The client that is running.
fn current() -> Option<Arc<Client>> {
    with(|current| current.client.clone()).flatten()
}

/// What the library sees instead of its surroundings, in a thread that has a run.
struct Surroundings;

/// Asks the run of this thread, which installed [`Surroundings`] when it began.
fn run<T>(ask: impl FnOnce(&mut Current) -> T) -> T {
    with(ask).expect("the surroundings are installed as long as there is a run")
}

impl Simulated for Surroundings {
    fn boot_nanos(&self) -> u64 {
        run(|current| {
            let elapsed = current.start.elapsed().as_nanos() as u64;
            current.client.as_ref().map_or(elapsed, |client| client.boot_nanos(elapsed))
        })
    }

    fn unix_micros(&self) -> u64 {
        run(|current| {
            let now = WALL_START + current.start.elapsed().as_micros() as u64;
            current.client.as_ref().map_or(now, |client| client.wall_micros(now))
        })
    }

    fn random(&self) -> u64 {
        run(|current| current.random.next_u64())
    }

    fn within(&self, task: Task) -> Task {
        Box::pin(client::Within::new(current(), task))
    }
}
