//! Waiting for the end of an entry, and for a change of a queue.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Memory;
use super::store::Store;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// Listens for changes of a queue. If the queue has neither an entry nor a value, dropping its last listener removes it from the
/// store's map. Without this removal, queues that somebody has only waited for would stay in memory.
struct Listening<'a> {
    store: &'a Store,
    queue: &'a QueueKey,
    channel: Option<watch::Receiver<u64>>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.channel = None;
        self.store.tidy(self.queue);
    }
}

#[async_trait]
impl Watching for Memory {
    async fn gone(
        &self,
        entry: &EntryRef,
        _seq: u64,
        waiter: Mode,
        _recheck: Duration,
    ) -> Result<()> {
        // `recheck` is not needed: this call listens to the entry itself, in the same process, so no notification can be lost.
        if let Some(mut alive) = self.store.listen(entry, waiter) {
            // The result does not matter. It says either that the entry was updated, or that the entry was removed and its sender
            // was dropped with it. In both cases the caller asks for the position of its own entry again.
            let _ = alive.changed().await;
        }
        Ok(())
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut listening = Listening { store: &self.store, queue, channel: None };
        let channel = listening.channel.insert(self.store.listen_to_queue(queue));
        // The queue owns the sender, and is kept as long as it has a listener. So the wait ends only when the queue changes, or
        // after `recheck`.
        let moved = channel.wait_for(|now| *now != revision);
        let _ = tokio::time::timeout(recheck, moved).await;
        Ok(())
    }
}
