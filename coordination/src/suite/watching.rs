//! Checks of waits: they end in time, with a notification or without one.

use std::future::Future;
use std::time::Duration;

use super::MOST_POLLS;
use super::test_store::{BOUND, CALL, Client, TestStore, attempt, dropped_after, may_pass, queue};
use crate::backend::{Blocker, EntryRef, Mode, NewEntry, Write};
use crate::error::{Error, Result};
use crate::key::QueueKey;

/// After how long a store must be asked again, at the latest: within the lease, as in the session.
const RECHECK: Duration = Duration::from_secs(2);
/// A re-check interval so long that only a notification can end the wait in time.
const SELDOM: Duration = Duration::from_secs(30);

/// Waits as callers do: until `over` returns true, begins the wait again whenever it has resolved early or has failed with an error
/// that may pass.
async fn until<W>(over: impl AsyncFn() -> Result<bool>, wait: impl Fn() -> W) -> Result<()>
where
    W: Future<Output = Result<()>>,
{
    while !over().await? {
        match wait().await {
            Err(error) if !may_pass(&error) => return Err(error),
            Err(_) => tokio::time::sleep(CALL / 10).await,
            Ok(()) => {}
        }
    }
    Ok(())
}

/// A client's entry that waits for another entry.
struct Waiter<'a> {
    client: &'a Client,
    own: NewEntry,
    /// The entry that it waits for, as the store names it.
    entry: EntryRef,
    seq: u64,
}

impl<'a> Waiter<'a> {
    /// Enters an entry behind an entry that blocks it.
    async fn behind(client: &'a Client, queue: &QueueKey, mode: Mode) -> Result<Self> {
        let (own, position) = client.enter_as(queue, mode).await?;
        let blocker = position.blocker.expect("there is one before it");
        let entry = EntryRef { queue: queue.clone(), id: blocker.id };
        Ok(Self { client, own, entry, seq: blocker.seq })
    }

    fn gone(&self, recheck: Duration) -> impl Future<Output = Result<()>> {
        let blocker = Blocker { id: self.entry.id.clone(), seq: self.seq };
        async move { self.client.store.unblocked(&self.own, &blocker, recheck).await }
    }

    /// Waits until the other entry does not block this one any more.
    async fn until_gone(&self, recheck: Duration) -> Result<()> {
        let is_gone = async || {
            let listing = self.client.read(&self.entry.queue).await?;
            let before = listing.entries.iter().find(|entry| entry.id == self.entry.id);
            Ok(!before.is_some_and(|entry| entry.mode.blocks(self.own.mode)))
        };
        until(is_gone, || self.gone(recheck)).await
    }
}

/// Whether the wait is still going on after a moment, as it must be if nothing happens.
async fn goes_on(wait: impl Future<Output = Result<()>>) -> bool {
    tokio::time::timeout(CALL, wait).await.is_err()
}

/// Does some work while `wait` waits, which began a moment before.
async fn meanwhile<T>(
    wait: impl Future<Output = Result<()>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let work = async {
        tokio::time::sleep(CALL).await;
        work.await
    };
    let both = async { tokio::try_join!(wait, work) };
    let both = tokio::time::timeout(2 * RECHECK + BOUND, both).await;
    Ok(both.expect("who waits is told, or looks again")?.1)
}

pub(super) async fn recheck_gone_is_told_of_a_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    for _ in 0..3 {
        let (entry, position) = client.enter(&queue).await?;
        let waiter = Waiter::behind(&other, &queue, Mode::Exclusive).await?;
        let leaving = client.leave(&entry, Some(position.seq));
        meanwhile(waiter.until_gone(SELDOM), leaving).await?;
        other.leave(&waiter.own, None).await?;
    }
    Ok(())
}

pub(super) async fn recheck_gone_is_told_of_the_end_of_a_session(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    client.enter(&queue).await?;
    let waiter = Waiter::behind(&other, &queue, Mode::Exclusive).await?;
    meanwhile(waiter.until_gone(SELDOM), client.close()).await
}

pub(super) async fn recheck_gone_is_told_of_an_update(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let waiter = Waiter::behind(&other, &queue, Mode::Shared).await?;
    let shared = NewEntry { mode: Mode::Shared, ..entry };
    let updating = client.update(&shared, position.seq);
    assert!(meanwhile(waiter.until_gone(SELDOM), updating).await?);
    Ok(())
}

pub(super) async fn recheck_gone_of_what_is_gone_already(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let waiter = Waiter::behind(&other, &queue, Mode::Exclusive).await?;
    client.leave(&entry, Some(position.seq)).await?;
    let gone = tokio::time::timeout(4 * BOUND, waiter.gone(SELDOM)).await;
    gone.expect("it is gone")
}

pub(super) async fn recheck_gone_without_a_notification(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let queue = queue("q");
    let (entry, position) = other.enter(&queue).await?;
    let waiter = Waiter::behind(&client, &queue, Mode::Exclusive).await?;
    let unheard = async {
        tested.proxy().silence();
        other.leave(&entry, Some(position.seq)).await?;
        tokio::time::sleep(CALL / 5).await;
        tested.proxy().heal();
        Ok(())
    };
    meanwhile(waiter.until_gone(RECHECK), unheard).await
}

pub(super) async fn recheck_changed_is_told_of_each_change(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let (changed, mut version) = (NewEntry { data: "new".into(), ..entry }, None);
    for change in 0..4 {
        let before = other.read(&queue).await?.revision;
        let is_over = async || Ok(other.read(&queue).await?.revision != before);
        let told = until(is_over, || other.store.changed(&queue, before, SELDOM));
        meanwhile(told, async {
            match change {
                0 => drop(client.update(&changed, position.seq).await?),
                1 => version = client.write(&Write::new(&queue, None, Some("v".into()))).await?,
                2 => drop(client.write(&Write::new(&queue, version, None)).await?),
                _ => client.leave(&changed, Some(position.seq)).await?,
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub(super) async fn recheck_changed_ends_though_nothing_changes(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    client.enter(&queue).await?;
    for _ in 0..3 {
        let revision = client.read(&queue).await?.revision;
        let changed = client.store.changed(&queue, revision, CALL);
        tokio::time::timeout(CALL + BOUND, changed).await.expect("the recheck is over")?;
        assert_eq!(client.read(&queue).await?.revision, revision, "nothing has changed");
    }
    Ok(())
}

pub(super) async fn recheck_changed_without_a_notification(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let queue = queue("q");
    let (entry, position) = other.enter(&queue).await?;
    let before = client.read(&queue).await?.revision;
    let is_over = async || Ok(client.read(&queue).await?.revision != before);
    let told = until(is_over, || client.store.changed(&queue, before, RECHECK));
    meanwhile(told, async {
        tested.proxy().silence();
        other.leave(&entry, Some(position.seq)).await?;
        tokio::time::sleep(CALL / 5).await;
        tested.proxy().heal();
        Ok(())
    })
    .await
}

/// Asserts that a wait ends on a store that is silent: it resolves, as if it was time to read again, or fails with an error that
/// may pass.
async fn ends(wait: impl Future<Output = Result<()>>) {
    let outcome = tokio::time::timeout(RECHECK + BOUND, wait).await;
    let outcome = outcome.expect("it waits for ever for a store that is silent");
    assert!(outcome.as_ref().err().is_none_or(Error::is_transient), "{outcome:?}");
}

pub(super) async fn bounded_gone_while_it_begins(tested: &TestStore<'_>) -> Result<()> {
    bounded_gone_while_it_begins_as(tested, Mode::Exclusive).await
}

pub(super) async fn bounded_gone_of_a_shared_waiter_while_it_begins(
    tested: &TestStore<'_>,
) -> Result<()> {
    bounded_gone_while_it_begins_as(tested, Mode::Shared).await
}

async fn bounded_gone_while_it_begins_as(tested: &TestStore<'_>, mode: Mode) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let queue = queue("q");
    other.enter(&queue).await?;
    let waiter = Waiter::behind(&client, &queue, mode).await?;
    tested.proxy().silence();
    ends(waiter.gone(RECHECK)).await;
    Ok(())
}

pub(super) async fn bounded_gone_while_it_waits(tested: &TestStore<'_>) -> Result<()> {
    bounded_gone_while_it_waits_as(tested, Mode::Exclusive).await
}

pub(super) async fn bounded_gone_of_a_shared_waiter_while_it_waits(
    tested: &TestStore<'_>,
) -> Result<()> {
    bounded_gone_while_it_waits_as(tested, Mode::Shared).await
}

async fn bounded_gone_while_it_waits_as(tested: &TestStore<'_>, mode: Mode) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let queue = queue("q");
    other.enter(&queue).await?;
    let waiter = Waiter::behind(&client, &queue, mode).await?;
    let mut waiting = Box::pin(waiter.gone(RECHECK));
    while !goes_on(waiting.as_mut()).await {
        waiting = Box::pin(waiter.gone(RECHECK));
    }
    tested.proxy().silence();
    ends(waiting).await;
    Ok(())
}

pub(super) async fn bounded_gone_without_a_connection(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let queue = queue("q");
    other.enter(&queue).await?;
    let waiter = Waiter::behind(&client, &queue, Mode::Exclusive).await?;
    tested.proxy().cut();
    ends(waiter.gone(RECHECK)).await;
    Ok(())
}

pub(super) async fn bounded_changed_while_it_begins(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client_by_proxy("a").await?, queue("q"));
    client.enter(&queue).await?;
    let revision = client.read(&queue).await?.revision;
    tested.proxy().silence();
    ends(client.store.changed(&queue, revision, RECHECK)).await;
    Ok(())
}

pub(super) async fn bounded_changed_while_it_waits(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client_by_proxy("a").await?, queue("q"));
    client.enter(&queue).await?;
    let mut waiting;
    loop {
        let revision = client.read(&queue).await?.revision;
        waiting = Box::pin(client.store.changed(&queue, revision, RECHECK));
        if goes_on(waiting.as_mut()).await {
            break;
        }
    }
    tested.proxy().silence();
    ends(waiting).await;
    Ok(())
}

pub(super) async fn no_retry_of_a_call_that_was_lost(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client_by_proxy("a").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    tested.proxy().silence();
    let mut call = Box::pin(client.store.position(&entry, position.seq));
    assert!(attempt(call.as_mut()).await.is_err(), "the store is silent");
    tested.proxy().heal();
    // Nobody gives up this call, and there would be a connection for another try.
    let answer = tokio::time::timeout(BOUND, call).await;
    assert!(!matches!(answer, Ok(Ok(_))), "it was made again: {answer:?}");
    assert!(client.position(&entry, position.seq).await?.is_some(), "repeated it is answered");
    Ok(())
}

pub(super) async fn cancel_safe_gone(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let waiter = Waiter::behind(&other, &queue, Mode::Exclusive).await?;
    for polls in 0..MOST_POLLS {
        let dropped = dropped_after(polls, waiter.gone(RECHECK));
        // After its polls, `dropped` is polled again only when something happens. So the timeout drops it.
        drop(tokio::time::timeout(CALL / 10, dropped).await);
    }
    let leaving = client.leave(&entry, Some(position.seq));
    meanwhile(waiter.until_gone(SELDOM), leaving).await
}
