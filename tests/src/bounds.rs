//! How long what a clause of `docs/guarantees.md` bounds may take: one function for each clause.
//!
//! What the machine adds is not in them: [`SCHEDULING`], and in checks [`TestStore::scheduling`](crate::checks::TestStore::scheduling)
//! besides. Last comes how long tests wait for what has no bound: only what hangs takes so long. L1 and T3 differ from store to store:
//! [`crash_release`](crate::harness::Server::crash_release), [`notice`](crate::harness::Server::notice).

use std::time::Duration;

/// T2: how soon after the deadline a loss is told.
pub const fn told() -> Duration {
    Duration::from_millis(50)
}

/// L2: how soon a waiter has a lock that is free, with a store in reach, whatever faults came before; besides the time
/// for which those ahead hold it.
pub const fn served() -> Duration {
    Duration::from_secs(2)
}

/// L4: when a call with this timeout has returned.
pub fn returned(timeout: Duration) -> Duration {
    timeout + Duration::from_millis(100)
}

/// L4: how long an acquire that asks once may take, which is one attempt at a call.
pub fn attempt(heartbeat: Duration, lease: Duration) -> Duration {
    heartbeat.min(lease / 6)
}

/// L5: how soon after the end of a fault new sessions and acquires work; `None`: sessions have no lease.
pub fn recovered(lease: Option<Duration>) -> Duration {
    2 * lease.unwrap_or_default() + Duration::from_secs(5)
}

/// L6: when a stop has returned.
pub fn stopped(lease: Duration) -> Duration {
    lease.min(Duration::from_secs(5)) + Duration::from_millis(100)
}

/// C2: how soon an entry that was given up is gone, besides one round trip.
pub const fn cleared() -> Duration {
    Duration::from_millis(100)
}

/// C7: how long a coordinator that was dropped tries to close its session.
pub const fn last_try() -> Duration {
    Duration::from_millis(500)
}

/// R4: the longest delay between two tries while the session can still be saved.
pub fn between_tries(heartbeat: Duration) -> Duration {
    heartbeat.min(Duration::from_secs(2))
}

/// ON1: how long a claim is left alone that is dated by a wrong clock, once it is seen: its period, by clocks of which one may
/// be half a percent slow.
pub fn disbelieved(period: Duration) -> Duration {
    period + period / 200
}

/// X1: how long connecting may take, whatever happens.
pub const fn connected() -> Duration {
    Duration::from_secs(5)
}

/// What tests add to a bound for scheduling and round trips.
pub const SCHEDULING: Duration = Duration::from_millis(200);

/// How long a server may take to answer a question of the harness.
pub const ANSWER: Duration = Duration::from_secs(5);

/// How long anything may take that a check waits for.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long anything may take that a fault row or a client process waits for.
pub const LONG: Duration = Duration::from_secs(30);

/// How long a crowd may take.
pub const CROWD: Duration = Duration::from_secs(300);
