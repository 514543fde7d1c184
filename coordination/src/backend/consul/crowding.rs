//! What gives way while the agent takes no more connections from this address.
//!
//! Consul takes 200 of them (`limits.http_max_conns_per_client`) and closes each one beyond that at once; newer releases say why,
//! with status 429. A session lives by its heartbeats, which keep a connection of their own. When another connection is refused,
//! here or in some other process of this host a heartbeat may need one as well. So whoever is refused gives way: for a while he
//! makes no blocking query, looks instead, and keeps no connection between calls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::env;
use crate::retry::DecorrelatedJitter;

/// What is said of a refusal.
pub(super) const FULL: &str = "it may have all connections that it takes from one address (`limits.http_max_conns_per_client`)";
/// How long one gives way at first.
const SHORTEST: Duration = Duration::from_secs(1);
/// And at most: then it is tried whether there are connections again.
const LONGEST: Duration = Duration::from_secs(5);
/// How often one looks meanwhile. A waiter is to be served within two seconds (`L2`).
const PACE: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(1);
/// It is longer where many look.
const PACE_PER_LOOK: Duration = Duration::from_millis(20);

/// Whether this process gives way.
pub(super) struct Crowding {
    state: Mutex<State>,
    /// How many wait for their next look.
    looking: AtomicU32,
}

struct State {
    until: Option<Instant>,
    pauses: DecorrelatedJitter,
}

impl Default for Crowding {
    fn default() -> Self {
        let state = State { until: None, pauses: pauses() };
        Self { state: Mutex::new(state), looking: AtomicU32::new(0) }
    }
}

impl Crowding {
    /// A connection was refused.
    pub(super) fn refused(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        // Of those that are refused at the same time the first one counts.
        if state.until.is_none_or(|until| until <= now) {
            state.until = Some(now + state.pauses.next_delay());
        }
    }

    /// A blocking query was answered.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        if !state.gives_way() {
            *state = State { until: None, pauses: pauses() };
        }
    }

    pub(super) fn gives_way(&self) -> bool {
        self.state().gives_way()
    }

    /// Waits until the time has come to look, in place of a query.
    pub(super) async fn next_look(&self) {
        let _one = Looking::new(&self.looking);
        let others = self.looking.load(Ordering::Relaxed);
        let pace = env::rng().random_range(PACE).max(PACE_PER_LOOK * others);
        tokio::time::sleep(pace.min(LONGEST)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn gives_way(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

fn pauses() -> DecorrelatedJitter {
    DecorrelatedJitter::new(SHORTEST, LONGEST)
}

/// One who waits for his next look, until this is dropped.
struct Looking<'a>(&'a AtomicU32);

impl<'a> Looking<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_gives_way_for_a_while() {
        let crowding = Crowding::default();
        assert!(!crowding.gives_way());
        crowding.refused();
        let until = crowding.state().until;
        assert!(
            crowding.gives_way() && until.is_some_and(|until| until <= Instant::now() + LONGEST)
        );
        // What was sent before is answered, and refused, too.
        crowding.answered();
        crowding.refused();
        assert_eq!(crowding.state().until, until);
        crowding.state().until = Some(Instant::now());
        assert!(!crowding.gives_way());
        crowding.answered();
        assert_eq!(crowding.state().until, None);
    }
}
