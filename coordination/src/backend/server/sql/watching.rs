//! Waiting for the end of an entry, and for a change of a queue. The dialect determines how this client learns of such events.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{Dialect, LITTLE, Seen, SqlStore};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl<D: Dialect> Watching for SqlStore<D> {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let recheck = self.dialect().at_most(recheck);
        let is_ours = self.entries.own(&entry.id).is_some();
        D::gone(self, &self.path(&entry.queue), seq, waiter, recheck, is_ours).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut following = D::follow(self, &self.path(queue)).await?;
        let Some(Seen { count: Some(count), expires }) = self.reads.at(queue, revision) else {
            // A change may have been missed: this process was not subscribed when the queue was read, or the queue was read again
            // since. So this call resolves, and the caller reads the queue again. The subscription made above stays for a moment,
            // so it still exists when the caller reads the queue.
            return Ok(());
        };
        let limit = Instant::now() + self.dialect().at_most(recheck);
        let limit = expires.map_or(limit, |expires| limit.min(expires + LITTLE));
        tokio::select! {
            biased;
            () = D::moved(&mut following, count) => {}
            () = tokio::time::sleep_until(limit.into()) => {}
        }
        Ok(())
    }
}
