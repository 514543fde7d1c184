//! F-14: the connection is cut after, and before, every single message of a call.
//!
//! Each cut call ends in a grant or an error. No entry may be left behind, no lock may have two holders, and every lock
//! can be acquired afterwards. Calls of locks are also cut at every frame: headers and acknowledgements are frames of
//! their own.

use coordination::Result;

use crate::checks::{
    TestStore, cancellation, closing, election, group,
    interruption::{MESSAGES, all_cuts, at_every_cut},
    limiter, multi_lock, once, rate_limiter, rwlock, semaphore, value,
};

/// F-14: a lock is acquired, held and released.
///
/// # Errors
///
/// Errors of the store.
pub async fn f14_every_cut_of_a_lock(store: &TestStore) -> Result<()> {
    for cuts in all_cuts(store) {
        at_every_cut(store, "acquire", cuts, cancellation::interrupted_acquire).await?;
        at_every_cut(store, "held for a while", cuts, cancellation::interrupted_hold).await?;
        at_every_cut(store, "release", cuts, cancellation::interrupted_release).await?;
    }
    Ok(())
}

/// F-14: a client waits for a lock.
pub async fn f14_every_cut_of_a_waiter(store: &TestStore) -> Result<()> {
    for cuts in all_cuts(store) {
        at_every_cut(store, "contended", cuts, cancellation::interrupted_wait).await?;
    }
    Ok(())
}

/// F-14: a lock is downgraded.
pub async fn f14_every_cut_of_a_downgrade(store: &TestStore) -> Result<()> {
    let waiting = rwlock::interrupted_wait_for_a_downgrade;
    for cuts in all_cuts(store) {
        at_every_cut(store, "downgrade", cuts, rwlock::interrupted_downgrade).await?;
        at_every_cut(store, "waiting for a downgrade", cuts, waiting).await?;
    }
    Ok(())
}

/// F-14: groups are joined and left; elections are won and given up.
pub async fn f14_every_cut_of_groups_and_elections(store: &TestStore) -> Result<()> {
    at_every_cut(store, "join", MESSAGES, group::interrupted_join).await?;
    at_every_cut(store, "join_or_create", MESSAGES, group::interrupted_join_or_create).await?;
    at_every_cut(store, "leave", MESSAGES, group::interrupted_leave).await?;
    at_every_cut(store, "campaign", MESSAGES, election::interrupted_campaign).await?;
    let candidacy = election::interrupted_candidacy;
    at_every_cut(store, "campaign against a leader", MESSAGES, candidacy).await?;
    at_every_cut(store, "resign", MESSAGES, election::interrupted_resignation).await.map(drop)
}

/// F-14: permits, slots, several locks, values, rate limiters and claims.
pub async fn f14_every_cut_of_slots_and_values(store: &TestStore) -> Result<()> {
    at_every_cut(store, "permits", MESSAGES, semaphore::interrupted_acquire).await?;
    at_every_cut(store, "permits that are taken", MESSAGES, semaphore::interrupted_wait).await?;
    at_every_cut(store, "permits, released", MESSAGES, semaphore::interrupted_release).await?;
    at_every_cut(store, "enter", MESSAGES, limiter::interrupted_enter).await?;
    at_every_cut(store, "enter, on standby", MESSAGES, limiter::interrupted_standby).await?;
    at_every_cut(store, "leaving a slot", MESSAGES, limiter::interrupted_leave).await?;
    at_every_cut(store, "several locks", MESSAGES, multi_lock::interrupted_acquire).await?;
    at_every_cut(store, "compare_and_set", MESSAGES, value::interrupted_write).await?;
    at_every_cut(store, "rate limiter", MESSAGES, rate_limiter::interrupted_acquire).await?;
    at_every_cut(store, "try_claim", MESSAGES, once::interrupted_claim).await.map(drop)
}

/// F-14: a client connects and stops.
pub async fn f14_every_cut_of_connect_and_stop(store: &TestStore) -> Result<()> {
    at_every_cut(store, "connect", MESSAGES, closing::interrupted_connect).await?;
    at_every_cut(store, "stop", MESSAGES, closing::interrupted_stop).await?;
    closing::until_no_session(store).await;
    Ok(())
}
