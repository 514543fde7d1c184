//! Waits for a condition. This is better than sleeping for a guessed time.

use std::{
    panic::Location,
    thread,
    time::{Duration, Instant},
};

/// The time between two checks of a condition.
const STEP: Duration = Duration::from_millis(5);

/// Waits until `condition` is true, and returns how long that took.
///
/// The time is that of tokio's clock. So in a test with paused time, the wait takes no real time.
///
/// # Panics
///
/// At the caller's line, if the condition does not hold within `timeout`.
///
/// # Cancel safety
///
/// Nothing is left behind.
#[track_caller]
pub fn eventually(
    timeout: Duration,
    mut condition: impl FnMut() -> bool,
) -> impl Future<Output = Duration> {
    eventually_async(timeout, move || std::future::ready(condition()))
}

/// [`eventually`] for an async condition.
///
/// # Panics
///
/// At the caller's line, if the condition does not hold within `timeout`. A check of the condition that is still
/// running when the timeout ends counts as false.
///
/// # Cancel safety
///
/// Nothing is left behind except by `condition` itself.
#[track_caller]
pub fn eventually_async<F: Future<Output = bool>>(
    timeout: Duration,
    mut condition: impl FnMut() -> F,
) -> impl Future<Output = Duration> {
    let caller = Location::caller();
    async move {
        let start = tokio::time::Instant::now();
        let polling = async {
            while !condition().await {
                tokio::time::sleep(STEP).await;
            }
        };
        match tokio::time::timeout(timeout, polling).await {
            Ok(()) => start.elapsed(),
            Err(_) => panic!("not true within {timeout:?}: the condition at {caller}"),
        }
    }
}

/// Blocks the thread until `condition` is true. Returns false if it is not true within `timeout`.
pub fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(STEP);
    }
}
