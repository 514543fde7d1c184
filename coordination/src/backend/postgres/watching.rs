//! Waiting: for the end of an entry, and for a change of a queue.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::Postgres;
use super::statement::Call;
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Told, Wait, Waited};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// How often a waiter looks where no notification comes, as a pooler is between. A free lock is granted within two seconds (L2).
const WITHOUT_WORD: Duration = Duration::from_secs(1);
/// An end that is looked for at its very moment may not have come yet.
const LITTLE: Duration = Duration::from_millis(2);

#[async_trait]
impl Watching for Postgres {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let recheck = self.at_most(recheck);
        let path = self.path(&entry.queue);
        let mut waiting = self.hub.wait(&Wait { queue: path.clone(), seq, mode: waiter });
        let waited = *waiting.borrow();
        let mut known = match waited {
            Waited::Over => return Ok(()),
            Waited::Blocks(known) => Some(known),
            Waited::Unknown => None,
        };
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
                        following =
                            Some(in_time(self.patience, self.connections.follow(&path)).await?);
                    }
                    let listens = following.is_some() && !self.is_pooled();
                    let look = self.look(&path, seq, waiter, listens);
                    match in_time(self.patience, look).await? {
                        Some(left) => Instant::now() + left,
                        None => return Ok(()),
                    }
                }
            };
            let until = until.min(Instant::now() + recheck) + LITTLE;
            tokio::select! {
                biased;
                _ = waiting.wait_for(Waited::is_over) => return Ok(()),
                _ = epochs.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
            drop(following.take());
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut epochs = self.connections.epochs();
        let path = self.path(queue);
        let mut following = in_time(self.patience, self.connections.follow(&path)).await?;
        let Some(Told { count: Some(count), expires }) = self.reads.at(queue, revision) else {
            // Something may have been missed: the caller reads again, and by then we listen.
            return Ok(());
        };
        let limit = Instant::now() + self.at_most(recheck);
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

impl Postgres {
    /// Whether nothing is told to us.
    fn is_pooled(&self) -> bool {
        self.connections.link.is_pooled.load(Ordering::Relaxed)
    }

    fn at_most(&self, recheck: Duration) -> Duration {
        if self.is_pooled() { recheck.min(WITHOUT_WORD) } else { recheck }
    }

    /// How long the entry has its lease yet; `None`: it does not block the waiter.
    async fn look(
        &self,
        path: &str,
        seq: u64,
        waiter: Mode,
        listens: bool,
    ) -> Result<Option<Duration>> {
        let call = Call::new("watch", "look")
            .bytes(path)
            .number(seq)
            .flag(waiter == Mode::Shared)
            .flag(listens);
        let answer = self.connections.run(&call).await?;
        let left = answer.number("remaining")?.filter(|_| answer.is_ok());
        Ok(left.map(Duration::from_micros))
    }
}
