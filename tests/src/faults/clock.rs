//! F-74: a client's wall clock is years ahead.

use std::time::Duration;

use coordination::Result;
use serde_json::json;

use crate::checks::{TestStore, once};
use crate::harness::WallClock;
use crate::must_hold;

const YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

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
    let ahead = clock.ahead(YEARS);
    let wrong =
        store.worker_with("ahead", &ahead.each_ref().map(|(name, value)| (*name, &**value)));
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
