//! Waiting: for the end of an entry, and for a change of a queue.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::Redis;
use super::script::{Call, Script, queue_path};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Told, Wait, word_for};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// An end that is looked for at its very moment may not have come yet.
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
        let mut known = waiting.borrow().known;
        let mut epochs = self.connections.epochs();
        // Otherwise the server does not know that we wait for this one.
        let is_expected = known.is_some();
        let mut following = None;
        loop {
            let epoch = *epochs.borrow_and_update();
            let until = match known.take().filter(|known| known.epoch == epoch) {
                Some(known) => known.until,
                None => {
                    if !is_expected {
                        following = Some(self.connections.follow(&queue).await?);
                    }
                    let look = self.look(&queue, entry, seq, waiter, following.is_some());
                    match in_time(self.patience, look).await? {
                        Some(left) => Instant::now() + left,
                        None => return Ok(()),
                    }
                }
            };
            let until = until.min(Instant::now() + recheck) + LITTLE;
            tokio::select! {
                biased;
                _ = waiting.wait_for(|waited| waited.is_over) => return Ok(()),
                _ = epochs.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
            drop(following.take());
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut epochs = self.connections.epochs();
        let mut following = self.connections.follow(&queue_path(queue)).await?;
        let Some(Told { count: Some(count), expires }) = self.reads.at(queue, revision) else {
            // Something may have been missed: the caller reads again, and by then we listen.
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

impl Redis {
    /// How long the entry has its lease yet; `None`: it does not block the waiter.
    async fn look(
        &self,
        queue: &str,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        listens: bool,
    ) -> Result<Option<Duration>> {
        let call = Call::new("watch", Script::Look)
            .with(queue)
            .with(entry.id.as_str())
            .with_number(seq)
            .with(word_for(waiter))
            .with(if listens { "1" } else { "" });
        let mut answer = self.connections.run(&call).await?;
        answer.is_ok().then(|| answer.natural().map(Duration::from_micros)).transpose()
    }
}
