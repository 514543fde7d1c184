//! Waiting for the end of an entry, and for a change of a queue.

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

/// Waiters ask the server this long after a lease should have ended: asked at that very moment, the server may still find the lease
/// running.
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
        let mut waiting = self.hub.wait(&Wait { queue: queue.clone(), seq, mode: waiter });
        let waited = *waiting.borrow();
        let end = End { entry, queue: &queue, seq, waiter, recheck };
        match waited {
            Waited::Over => Ok(()),
            Waited::Blocks(known) => self.gone_as_told(&end, &mut waiting, known).await,
            Waited::Unknown => self.gone_as_overheard(&end, &mut waiting).await,
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut epochs = self.connections.epochs();
        let mut following = self.connections.follow(&queue_path(queue)).await?;
        let Some(Told { count: Some(count), expires }) = self.reads.at(queue, revision) else {
            // A change may have been missed: the channel was not subscribed when the queue was read, or the queue was read again
            // since. The caller reads again. The subscription lingers, so it is still there at that read.
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

/// The end of an entry that is waited for.
struct End<'a> {
    entry: &'a EntryRef,
    queue: &'a str,
    seq: u64,
    waiter: Mode,
    recheck: Duration,
}

impl Redis {
    /// Waits for an entry of whose end the server will notify this client. `known`: what the server said of the entry last.
    async fn gone_as_told(
        &self,
        end: &End<'_>,
        waiting: &mut watch::Receiver<Waited>,
        known: Known,
    ) -> Result<()> {
        let mut epochs = self.connections.epochs();
        // The epoch is compared and marked as seen in one step. Otherwise a new connection between the two steps would go
        // unnoticed.
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

    /// Waits for an entry of whose end the server does not notify this client: subscribes to the channel of its queue.
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

    /// When the entry's lease ends; `None`: the entry does not block the waiter.
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
    /// Waits for a notification of the entry's end; true: it came. False: the entry may be gone all the same, because its lease may
    /// be over or the connection has changed; or `recheck` is over.
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
