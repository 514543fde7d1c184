//! F-41, F-42: a call is dropped while its traffic with the server is stopped, after each message.
//!
//! The checks of C1 and C2 drop a call at every poll of the caller's future. Here the call is dropped at every message
//! that the session's task exchanges with the server for the call.

use coordination::Result;

use crate::checks::{
    TestStore, cancellation, closing, election, group, interruption::at_every_message, limiter,
    multi_lock, once, rate_limiter, rwlock, semaphore, value,
};

/// F-41: locks are acquired.
///
/// # Errors
///
/// Errors of the store.
pub async fn f41_locks_at_every_message(store: &TestStore) -> Result<()> {
    at_every_message(store, "acquire", cancellation::interrupted_acquire).await?;
    at_every_message(store, "try_acquire", cancellation::interrupted_try).await?;
    at_every_message(store, "acquire of a held lock", cancellation::interrupted_wait).await?;
    at_every_message(store, "acquire_shared", rwlock::interrupted_share).await?;
    at_every_message(store, "acquire_shared of a held lock", rwlock::interrupted_shared_wait)
        .await?;
    at_every_message(store, "downgrade", rwlock::interrupted_downgrade).await?;
    at_every_message(store, "several locks", multi_lock::interrupted_acquire).await?;
    at_every_message(store, "several locks, the last held", multi_lock::interrupted_wait).await
}

/// F-42: whatever was granted is released.
pub async fn f42_releases_at_every_message(store: &TestStore) -> Result<()> {
    at_every_message(store, "release", cancellation::interrupted_release).await?;
    at_every_message(store, "several locks, released", multi_lock::interrupted_release).await?;
    at_every_message(store, "permits, released", semaphore::interrupted_release).await?;
    at_every_message(store, "leaving a slot", limiter::interrupted_leave).await?;
    at_every_message(store, "leave", group::interrupted_leave).await?;
    at_every_message(store, "resign", election::interrupted_resignation).await
}

/// F-41: calls of the other recipes that acquire something.
pub async fn f41_recipes_at_every_message(store: &TestStore) -> Result<()> {
    at_every_message(store, "permits", semaphore::interrupted_acquire).await?;
    at_every_message(store, "permits that are taken", semaphore::interrupted_wait).await?;
    at_every_message(store, "enter", limiter::interrupted_enter).await?;
    at_every_message(store, "enter, on standby", limiter::interrupted_standby).await?;
    at_every_message(store, "join", group::interrupted_join).await?;
    at_every_message(store, "join_or_create", group::interrupted_join_or_create).await?;
    at_every_message(store, "campaign", election::interrupted_campaign).await?;
    at_every_message(store, "campaign against a leader", election::interrupted_candidacy).await?;
    at_every_message(store, "rate limiter", rate_limiter::interrupted_acquire).await?;
    at_every_message(store, "try_claim", once::interrupted_claim).await?;
    at_every_message(store, "compare_and_set", value::interrupted_write).await
}

/// F-41: a client connects and stops.
pub async fn f41_connect_and_stop_at_every_message(store: &TestStore) -> Result<()> {
    at_every_message(store, "connect", closing::interrupted_connect).await?;
    at_every_message(store, "stop", closing::interrupted_stop).await?;
    closing::until_no_session(store).await;
    Ok(())
}
