//! A rate limiter. The run checks that no window has more permits than allowed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::nanos;
use coordination::{Attempt, RateLimiter, RatePermit, Result};
use rand::RngExt;

use crate::stage::{Process, Stage, lock};

const PERMITS: u32 = 3;
const WINDOW: Duration = Duration::from_millis(120);

#[derive(Default)]
pub(crate) struct Ledger {
    /// One limiter for each process. A limiter learns from its calls, so all calls of a process have to use the same
    /// one.
    limiters: BTreeMap<u32, RateLimiter>,
    given: Vec<Given>,
}

/// A permit that was given. `call` and `end` are the beginning and the return of the call, in the world's time. `slot`
/// is the time of the permit on the store's clock.
struct Given {
    call: u64,
    end: u64,
    slot: Duration,
}

fn limiter(stage: &Stage, process: &Process) -> RateLimiter {
    let made = || process.coordinator.rate_limiter("rate", PERMITS, WINDOW);
    let mut ledger = lock(&stage.ledgers.rates);
    let limiter = ledger.limiters.entry(process.number);
    limiter.or_insert_with(|| made().expect("the settings are right")).clone()
}

/// Takes one or two permits: either at once or not at all, or after waiting for them.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let limiter = limiter(stage, process);
    let permits = stage.draw(|random| random.random_range(1..=2));
    let waits = stage.draw(|random| random.random());
    let call = nanos();
    let permit = match acquire(&limiter, permits, waits).await {
        Ok(Some(permit)) => permit,
        Ok(None) => return,
        Err(error) => return stage.failed("rate", &error),
    };
    let end = nanos();
    // The store's clock shows the world's time, so `slot` can be compared with it.
    let slot = permit.slot();
    let is_early = stage.plan.traits.has_clock && Duration::from_nanos(end) < slot;
    if is_early && stage.has_all_data() {
        stage.broken(format!("RL1: {permit:?} was returned at {end} ns"));
    }
    let mut ledger = lock(&stage.ledgers.rates);
    ledger.given.extend((0..permits).map(|_| Given { call, end, slot }));
}

async fn acquire(limiter: &RateLimiter, permits: u32, waits: bool) -> Result<Option<RatePermit>> {
    if waits {
        return limiter.acquire(permits, Some(2 * WINDOW)).await.map(Some);
    }
    Ok(match limiter.try_acquire(permits).await? {
        Attempt::Granted(permit) => Some(permit),
        Attempt::Denied { .. } => None,
    })
}

/// RL1: checks after the run that no window has more permits than allowed.
pub(crate) fn conclude(stage: &Stage) {
    if !stage.has_all_data() {
        return;
    }
    let mut ledger = lock(&stage.ledgers.rates);
    let most = PERMITS as usize;
    let window = WINDOW.as_nanos() as u64;
    for first in &ledger.given {
        stage.judges("RL1");
        // The calls of these permits did not begin before the call of `first`, and returned less than a window after it
        // had begun. So all their slots are in one window, whatever the exact slots are.
        let within = |it: &&Given| it.call >= first.call && it.end < first.call + window;
        let count = ledger.given.iter().filter(within).count();
        if count > most {
            stage.broken(format!("RL1: {count} permits in the window from {} ns on", first.call));
        }
    }
    if stage.plan.traits.has_clock {
        ledger.given.sort_by_key(|given| given.slot);
        let slots = ledger.given.windows(most + 1).map(|given| (given[0].slot, given[most].slot));
        for (one, other) in slots.filter(|(one, other)| *other - *one < WINDOW) {
            stage.broken(format!("RL1: {} permits from {one:?} to {other:?}", most + 1));
        }
    }
}
