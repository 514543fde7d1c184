//! What gives way while the agent takes no more connections from this address.
//!
//! Consul takes 200 of them (`limits.http_max_conns_per_client`) and closes each one beyond that at once; newer releases say
//! why, with status 429. A session lives by its heartbeats, which have a connection that is kept. If another connection is
//! refused, a heartbeat of this process or of another one on this host may need a new one as well. So a process that is refused
//! gives way: for a while the kept connection is its only one. All its calls are made on that, one after the other, and waiters
//! are told by queries that do not block.
//!
//! An agent that is gone looks the same at first: the next call on the kept connection tells. Any other reason for which a
//! connection cannot be made (no descriptor or port is left here, a firewall drops it) is dealt with in the same way: calls go
//! on where there is a connection.

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
/// How long one gives way after the agent was lost: others have lost their connections as well.
const ANEW: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_millis(1_500);
/// The time between two queries that do not block. A waiter is to be served within two seconds (`L2`).
const PACE: std::ops::Range<Duration> = Duration::from_millis(400)..Duration::from_millis(800);

/// Whether this process gives way.
#[derive(Default)]
pub(super) struct Crowding(Mutex<State>);

struct State {
    /// No connection but the kept one is used before.
    until: Option<Instant>,
    lengths: DecorrelatedJitter,
}

impl Crowding {
    /// Notes that a connection could not be made, or was closed.
    pub(super) fn refused(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        // If several are refused at the same time, only the first one counts.
        if !state.gives_way(now) {
            state.until = Some(now + state.lengths.next_delay());
        }
    }

    /// Notes that there is a kept connection again, after the agent was lost.
    pub(super) fn begun_anew(&self) {
        let (mut state, until) = (self.state(), Instant::now() + env::rng().random_range(ANEW));
        state.until = state.until.max(Some(until));
    }

    /// Notes that a request was answered that was sent at this moment on another connection than the kept one.
    pub(super) fn answered(&self, sent: Instant) {
        let mut state = self.state();
        // A request on a connection from before the refusal says nothing of new connections.
        if state.until.is_some_and(|until| until <= sent) {
            *state = State::default();
        }
    }

    pub(super) fn gives_way(&self) -> bool {
        self.state().gives_way(Instant::now())
    }

    /// Waits until the next query that does not block.
    pub(super) async fn next_look(&self) {
        let pace = env::rng().random_range(PACE);
        tokio::time::sleep(pace).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn gives_way(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Default for State {
    fn default() -> Self {
        Self { until: None, lengths: DecorrelatedJitter::new(SHORTEST, LONGEST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_gives_way_for_a_while() {
        let crowding = Crowding::default();
        assert!(!crowding.gives_way());
        let sent = Instant::now();
        crowding.refused();
        let until = crowding.state().until;
        let longest = Instant::now() + LONGEST;
        assert!(crowding.gives_way() && until.is_some_and(|until| until <= longest));
        // What was sent before is answered, and refused, too.
        crowding.answered(sent);
        crowding.refused();
        assert_eq!(crowding.state().until, until);
        crowding.state().until = Some(Instant::now());
        assert!(!crowding.gives_way(), "it is tried again");
        crowding.answered(sent);
        assert!(crowding.state().until.is_some(), "that had its connection before");
        crowding.answered(Instant::now());
        assert_eq!(crowding.state().until, None);
    }

    #[test]
    fn who_begins_anew_gives_way_for_a_moment() {
        let crowding = Crowding::default();
        crowding.begun_anew();
        let longest = Instant::now() + ANEW.end;
        assert!(crowding.gives_way() && crowding.state().until.is_some_and(|at| at <= longest));
        // Never shorter than before.
        let later = Some(Instant::now() + LONGEST);
        crowding.state().until = later;
        crowding.begun_anew();
        assert_eq!(crowding.state().until, later);
    }
}
