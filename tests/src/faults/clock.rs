//! F-29, F-74: a client's wall clock is set, or years ahead.

use std::thread::sleep;
use std::time::Duration;

use coordination::Result;
use serde_json::json;

use super::Site;
use crate::checks::{TestStore, once};
use crate::harness::WallClock;
use crate::must_hold;

/// An hour in milliseconds.
const HOUR: i64 = 60 * 60 * 1_000;
const YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// F-29: the wall clock of a client that holds a lock is set forward and back by an hour.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f29_client_clock_set(site: &Site) {
    let clock = WallClock::new();
    let mut set = site.clone();
    set.worker = clock.program(&site.worker);
    let (holder, other) = (set.process("holder"), site.process("other"));
    let mut last = holder.acquire("x").token;
    holder.observe("x");
    for ahead in [HOUR, -HOUR] {
        clock.set(ahead);
        sleep(3 * site.heartbeat);
        holder.keeps("x");
    }
    holder.release("x");
    for process in [&other, &holder] {
        let token = process.acquire("x").token;
        must_hold!(token > last, "{token} after {last}");
        last = token;
        process.release("x");
    }
}

/// F-74: a client whose clock is years ahead keeps others from a once-per-period job for one period only, and locks
/// pass from client to client as usual.
///
/// # Errors
///
/// Errors of the store.
///
/// # Panics
///
/// If an assertion of the row fails.
pub async fn f74_a_clock_years_ahead(store: &TestStore) -> Result<()> {
    once::on1_a_clock_that_is_years_ahead(store).await?;
    let clock = WallClock::new();
    clock.set_ahead(YEARS);
    let environment = clock.environment();
    let wrong =
        store.worker_with("ahead", &environment.each_ref().map(|(name, value)| (*name, &**value)));
    let right = store.worker("right");
    let mut last = 0;
    for worker in [&right, &wrong, &right, &wrong, &right] {
        let acquire = json!({ "command": "acquire", "lock": "x", "timeout_ms": 10_000 });
        let token = worker.call(acquire)["token"].as_u64().expect("a number");
        must_hold!(token > last, "{token} after {last}");
        last = token;
        worker.call(json!({ "command": "release", "handle": "x" }));
    }
    Ok(())
}
