//! How long an operation may take according to `docs/guarantees.md`: one function for each clause that bounds time.
//!
//! These bounds do not include time that the machine withholds. Tests add [`SCHEDULING`], and checks also add
//! [`TestStore::scheduling`](crate::checks::TestStore::scheduling). L1 and T3 differ from store to store:
//! [`crash_release`](crate::harness::Server::crash_release), [`notice`](crate::harness::Server::notice). The constants
//! at the end are timeouts for waits that no clause bounds; a wait takes that long only if something hangs.

use std::time::Duration;

/// T2: how soon after the deadline a guard reports its loss.
pub const fn told() -> Duration {
    Duration::from_millis(50)
}

/// L2: how soon a waiter has a free lock while the store is in reach, whatever faults came before. The time for which
/// those ahead of the waiter hold the lock is not included.
pub const fn served() -> Duration {
    Duration::from_secs(2)
}

/// L4: within which time a call with this timeout returns.
pub fn returned(timeout: Duration) -> Duration {
    timeout + Duration::from_millis(100)
}

/// L4: how long an acquire with a timeout of zero may take: the time of one attempt at a call.
pub fn attempt(heartbeat: Duration, lease: Duration) -> Duration {
    heartbeat.min(lease / 6)
}

/// L5: how soon after the end of a fault new sessions and acquires work. `None` means that sessions of this store have
/// no lease.
pub fn recovered(lease: Option<Duration>) -> Duration {
    2 * lease.unwrap_or_default() + Duration::from_secs(5)
}

/// L6: within which time a stop returns.
pub fn stopped(lease: Duration) -> Duration {
    lease.min(Duration::from_secs(5)) + Duration::from_millis(100)
}

/// C2: how soon an entry is removed after its caller has given up, in addition to one round trip.
pub const fn cleared() -> Duration {
    Duration::from_millis(100)
}

/// C7: how long a coordinator that was dropped tries to close its session.
pub const fn last_try() -> Duration {
    Duration::from_millis(500)
}

/// R4: the longest delay between two attempts while the session can still be saved.
pub fn between_tries(heartbeat: Duration) -> Duration {
    heartbeat.min(Duration::from_secs(2))
}

/// ON1: if a claim has a date in the future, because a clock is wrong, others respect the claim for this time after
/// they first saw it. This is the claim's period and half a percent more, because one of two clocks may be slow by half
/// a percent.
pub fn disbelieved(period: Duration) -> Duration {
    period + period / 200
}

/// X1: how long connecting may take, whatever happens.
pub const fn connected() -> Duration {
    Duration::from_secs(5)
}

/// What tests add to a bound for scheduling and round trips.
pub const SCHEDULING: Duration = Duration::from_millis(200);

/// How long a server may take to answer a request of the harness.
pub const ANSWER: Duration = Duration::from_secs(5);

/// The timeout of waits in checks.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The timeout of waits in fault rows and in client processes.
pub const LONG: Duration = Duration::from_secs(30);

/// The timeout of tests with crowds of clients.
pub const CROWD: Duration = Duration::from_secs(300);
