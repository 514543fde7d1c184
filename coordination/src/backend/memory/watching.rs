//! Waiting: for the end of an entry, and for a change of a queue.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Memory;
use super::store::Store;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// Somebody who listens to a queue, which may be empty; then nothing else keeps it.
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
        // No notification is ever lost here: the entry itself is what is listened to.
        if let Some(mut alive) = self.store.listen(entry, waiter) {
            // Updated, or dropped with the entry: callers look again.
            let _ = alive.changed().await;
        }
        Ok(())
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut listening = Listening { store: &self.store, queue, channel: None };
        let channel = listening.channel.insert(self.store.listen_to_queue(queue));
        // The sender goes with the store, which is held here.
        let moved = channel.wait_for(|now| *now != revision);
        let _ = tokio::time::timeout(recheck, moved).await;
        Ok(())
    }
}
