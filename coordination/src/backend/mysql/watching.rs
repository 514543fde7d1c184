//! Waiting: for the end of an entry, and for a change of a queue. See [`polls`](super::polls).

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::Mysql;
use super::polls::Wait;
use crate::backend::server::in_time;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// An end that is looked for at its very moment may not have come yet.
const LITTLE: Duration = Duration::from_millis(2);

#[async_trait]
impl Watching for Mysql {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let path = self.path(&entry.queue);
        let mut waiting = self.polls.wait(Wait { path, seq, mode: waiter }, &self.connections);
        loop {
            let since = Instant::now();
            tokio::select! {
                biased;
                () = waiting.over() => return Ok(()),
                () = tokio::time::sleep(recheck) => {}
            }
            // The poll asks for all who wait. Where it gets no answer, each has to hear of that, and looks himself.
            if self.polls.asked().is_none_or(|asked| asked < since) {
                return in_time(self.patience, self.connections.ask("DO 0")).await.map(drop);
            }
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let path = self.path(queue);
        let mut followed = self.polls.follow(&path, &self.connections);
        let Some((count, expires)) = self.reads.at(queue, revision) else {
            // Something may have been missed: the caller reads again, and by then we follow.
            return Ok(());
        };
        let limit = Instant::now() + recheck;
        let limit = expires.map_or(limit, |expires: Instant| limit.min(expires + LITTLE));
        tokio::select! {
            biased;
            _ = followed.wait_for(|changes| *changes > count) => {}
            () = tokio::time::sleep_until(limit.into()) => {}
        }
        Ok(())
    }
}
