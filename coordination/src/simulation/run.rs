//! The run of a thread: its time, its random numbers, and which client is running.

use std::cell::RefCell;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::client::Client;

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

pub(super) struct Run {
    start: Instant,
    /// The source of the library's random numbers.
    pub(super) random: StdRng,
    pub(super) client: Option<Arc<Client>>,
    /// What [`moment`] returned last.
    moment: u64,
}

/// Begins the run of this thread, which must have none.
pub(super) fn begin(seed: u64) {
    let random = StdRng::seed_from_u64(seed);
    let before = RUN.replace(Some(Run { start: Instant::now(), random, client: None, moment: 0 }));
    assert!(before.is_none(), "a thread has one run at a time");
}

pub(super) fn end() {
    RUN.set(None);
}

/// Calls `ask` with the run of this thread; `None` if the thread has none.
pub(super) fn with<T>(ask: impl FnOnce(&mut Run) -> T) -> Option<T> {
    RUN.with_borrow_mut(|run| run.as_mut().map(ask))
}

/// The client that is running.
pub(super) fn client() -> Option<Arc<Client>> {
    with(|run| run.client.clone()).flatten()
}

/// Nanoseconds since the run began, by no client's clock.
pub fn nanos() -> u64 {
    with(|run| run.start.elapsed().as_nanos() as u64).unwrap_or_default()
}

/// Like [`nanos`], for a history: no two results are equal, so that events within one tick of the clock are in their order, too.
pub fn moment() -> u64 {
    let now = nanos();
    with(|run| {
        run.moment = now.max(run.moment + 1);
        run.moment
    })
    .unwrap_or(now)
}
