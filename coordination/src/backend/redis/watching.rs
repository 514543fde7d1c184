//! The trait `Watching` for Redis: waits for the end of an entry, and for a change of a queue.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::watch;

use super::Redis;
use super::script::{Call, Script, queue_path};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Known, Told, Wait, Waited, word_for};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// When a lease should have ended, a waiter waits for this much longer before it asks the server. Otherwise the server might find
/// that the lease still runs for a moment, and the waiter would have to ask again.
const LITTLE: Duration = Duration::from_millis(2);

#[async_trait]
impl Watching for Redis {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let queue = queue_path(&entry.queue);
        let wait = Wait { queue: queue.clone(), seq, mode: waiter };
        let mut waiting = self.hub.wait(&wait, self.epoch());
        let waited = *waiting.borrow();
        let end = End { entry, queue: &queue, seq, waiter, recheck };
        match waited {
            Waited::Over(_) => Ok(()),
            Waited::Blocks(known) => self.gone_as_told(&end, &mut waiting, known).await,
            Waited::Unknown => self.gone_as_overheard(&end, &mut waiting).await,
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut epochs = self.connections.epochs();
        let mut following = self.connections.follow(&queue_path(queue)).await?;
        let Some(Told { count: Some(count), expires }) = self.reads.at(queue, revision) else {
            // A change of the queue after the caller's read may have been missed: the channel was not subscribed at that read, or
            // another caller has read the queue since. So this returns at once, and the caller reads the queue again. The channel
            // stays subscribed for some seconds after this call, so it is still subscribed when the caller reads.
            return Ok(());
        };
        let limit = Instant::now() + recheck;
        let limit = expires.map_or(limit, |expires| limit.min(expires + LITTLE));
        tokio::select! {
            biased;
            _ = following.wait_for(|followed| followed.count != count) => {}
            _ = epochs.changed() => {}
            () = tokio::time::sleep_until(limit.into()) => {}
        }
        Ok(())
    }
}

/// The arguments of `gone`: the entry whose end is waited for, its queue and number, the mode of the entry that waits, and the
/// longest time to wait.
struct End<'a> {
    entry: &'a EntryRef,
    queue: &'a str,
    seq: u64,
    waiter: Mode,
    recheck: Duration,
}

impl Redis {
    /// Waits for the end of an entry that blocks one of our own entries. Because it blocks ours, the server sends this client a
    /// message when that entry ends.
    /// `known`: on which connection the server last said that the entry blocks, and when its lease may end. If that was on an older
    /// connection, the message may be lost, and the server is asked first.
    async fn gone_as_told(
        &self,
        end: &End<'_>,
        waiting: &mut watch::Receiver<Waited>,
        known: Known,
    ) -> Result<()> {
        let mut epochs = self.connections.epochs();
        // `borrow_and_update` reads the epoch and marks it as seen in one step. If these were two steps, and the connection were
        // replaced between them, `is_told` would not notice that.
        let is_of_now = known.epoch == *epochs.borrow_and_update();
        if is_of_now && end.is_told(waiting, &mut epochs, known.until).await {
            return Ok(());
        }
        loop {
            epochs.mark_unchanged();
            let Some(until) = self.look(end, false).await? else { return Ok(()) };
            if end.is_told(waiting, &mut epochs, until).await {
                return Ok(());
            }
        }
    }

    /// Waits for the end of an entry that the server has not named to this client as the blocker of one of our own. When such an
    /// entry ends, the server sends no message to this client. Therefore this subscribes to the channel of the queue, on which
    /// every change of the queue is published.
    async fn gone_as_overheard(
        &self,
        end: &End<'_>,
        waiting: &mut watch::Receiver<Waited>,
    ) -> Result<()> {
        let mut epochs = self.connections.epochs();
        loop {
            epochs.mark_unchanged();
            let _listening = self.connections.follow(end.queue).await?;
            let Some(until) = self.look(end, true).await? else { return Ok(()) };
            if end.is_told(waiting, &mut epochs, until).await {
                return Ok(());
            }
        }
    }

    /// Asks the server when the lease of the entry ends; `None`: the entry is gone, or does not block entries of the waiter's mode.
    /// `listens`: this client listens to the queue's channel, so the server has to publish changes there.
    async fn look(&self, end: &End<'_>, listens: bool) -> Result<Option<Instant>> {
        let call = Call::new("watch", Script::Look)
            .with(end.queue)
            .with(end.entry.id.as_str())
            .with_number(end.seq)
            .with(word_for(end.waiter))
            .with(if listens { "1" } else { "" });
        let looking = async {
            let mut answer = self.connections.run(&call).await?;
            let left = answer.is_ok().then(|| answer.natural()).transpose()?;
            Ok(left.map(|left| Instant::now() + Duration::from_micros(left)))
        };
        in_time(self.patience, looking).await
    }
}

impl End<'_> {
    /// Waits for a message that the entry has ended. Returns true if the message came. Returns false if the caller has to ask the
    /// server: the entry's lease may be over (`until`), or the connection was replaced, so that a message may be lost, or `recheck`
    /// is over.
    async fn is_told(
        &self,
        waiting: &mut watch::Receiver<Waited>,
        epochs: &mut watch::Receiver<u64>,
        until: Instant,
    ) -> bool {
        let until = until.min(Instant::now() + self.recheck) + LITTLE;
        tokio::select! {
            biased;
            _ = waiting.wait_for(Waited::is_over) => true,
            _ = epochs.changed() => false,
            () = tokio::time::sleep_until(until.into()) => false,
        }
    }
}
