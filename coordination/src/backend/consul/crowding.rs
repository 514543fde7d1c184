//! What this process does while the agent accepts no more connections from this address: it *gives way*.
//!
//! Consul accepts 200 connections from an address (`limits.http_max_conns_per_client`) and closes each further one at once; newer
//! releases say why, with status 429. A session stays alive by its heartbeats, for which each process keeps one connection open. If
//! the agent refuses another connection of this process, it would also refuse a process on this host that needs a new connection
//! for its heartbeats. So a process whose connection was refused leaves the room to others: for a while it uses only its connection
//! for heartbeats. All its calls are made on that connection, one after the other. Its waiters send no blocking queries, only
//! queries that are answered at once.
//!
//! If the agent itself has ended, it refuses connections as well. In that case the next call on the connection for heartbeats
//! fails too, and the process connects again. A connection may also be impossible for another reason: this host has no descriptor
//! or port left, or a firewall drops it. Then the process gives way, too, and its calls go on over the connection that it has.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::env;
use crate::retry::DecorrelatedJitter;

/// Added to the message of an error if the agent refused a connection.
pub(super) const FULL: &str = "it may have all connections that it takes from one address (`limits.http_max_conns_per_client`)";
/// How long the process gives way, at least, after a connection was refused.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long the process gives way, at most, after a connection was refused. The time grows with repeated refusals. At its end,
/// calls may open other connections again.
const LONGEST: Duration = Duration::from_secs(5);
/// How long the process gives way after it has lost the agent and connected again. All clients of that agent then connect again
/// at the same time, and their heartbeats have to come first.
const ANEW: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_millis(1_500);
/// The pause between two queries of a waiter while the process gives way and queries do not block. A waiter has to get the lock
/// within two seconds (`L2`).
const PACE: std::ops::Range<Duration> = Duration::from_millis(400)..Duration::from_millis(800);

/// Whether this process gives way now, which means that it uses only its connection for heartbeats.
#[derive(Default)]
pub(super) struct Crowding(Mutex<State>);

struct State {
    /// Until this moment, only the connection that is kept open for heartbeats is used.
    until: Option<Instant>,
    lengths: DecorrelatedJitter,
}

impl Crowding {
    /// Notes that a connection other than the one for heartbeats could not be made, or was closed without an answer. The process
    /// gives way from now on.
    pub(super) fn refused(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        // If the process gives way already, a further refusal does not make it give way for longer: several connections may be
        // refused at the same time.
        if !state.gives_way(now) {
            state.until = Some(now + state.lengths.next_delay());
        }
    }

    /// Notes that the process has lost the agent and has connected again.
    pub(super) fn begun_anew(&self) {
        let (mut state, until) = (self.state(), Instant::now() + env::rng().random_range(ANEW));
        state.until = state.until.max(Some(until));
    }

    /// Notes that a request was answered which had been sent at the moment `sent`, on a connection other than the one for
    /// heartbeats. If this shows that the agent accepts connections again, the back-off is reset: when the agent refuses a
    /// connection the next time, this process gives way for the shortest period.
    pub(super) fn answered(&self, sent: Instant) {
        let mut state = self.state();
        // Only a request that was sent after `until` shows that the agent accepts connections again. An earlier request may have
        // used a connection that was made before the refusal.
        if state.until.is_some_and(|until| until <= sent) {
            *state = State::default();
        }
    }

    pub(super) fn gives_way(&self) -> bool {
        self.state().gives_way(Instant::now())
    }

    /// Waits until a waiter may send its next query while the process gives way.
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
        // A request from before the refusal is answered, and then another connection is refused. Neither changes how long the
        // process gives way.
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
        // If the process already gives way until a later moment, that moment stays.
        let later = Some(Instant::now() + LONGEST);
        crowding.state().until = later;
        crowding.begun_anew();
        assert_eq!(crowding.state().until, later);
    }
}
