//! Waiting: for the end of an entry, and for a change of a queue.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::script::{Call, Script};
use super::watch::{Known, Wait, word_for};
use super::{Redis, queue_path};
use crate::backend::{EntryRef, Listing, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs whoever waits for it one read more.
const REMEMBERED: usize = 1024;
/// An end that is looked for at its very moment may not have come yet.
const LITTLE: Duration = Duration::from_millis(2);

/// What was told of each queue before it was read last.
#[derive(Default)]
pub(super) struct Reads(Mutex<HashMap<QueueKey, Read>>);

#[derive(Clone, Copy)]
struct Read {
    revision: u64,
    /// How many messages there were when it was asked for; `None`: nobody listened.
    count: Option<u64>,
    /// When the first of its leases may be over.
    expires: Option<Instant>,
}

impl Reads {
    pub(super) fn note(
        &self,
        queue: &QueueKey,
        revision: u64,
        count: Option<u64>,
        expires: Option<Instant>,
    ) {
        let mut reads = self.reads();
        if reads.len() >= REMEMBERED && !reads.contains_key(queue) {
            reads.clear();
        }
        reads.insert(queue.clone(), Read { revision, count, expires });
    }

    fn of(&self, queue: &QueueKey, revision: u64) -> Option<Read> {
        self.reads().get(queue).filter(|read| read.revision == revision).copied()
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<QueueKey, Read>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A number for what is listed.
pub(super) fn revision_of(listing: &Listing) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in &listing.entries {
        (entry.seq, entry.id.as_str(), entry.mode == Mode::Shared, &entry.data).hash(&mut hasher);
    }
    listing.value.as_ref().map(|value| value.version).hash(&mut hasher);
    hasher.finish()
}

impl Redis {
    pub(super) async fn wait_gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let queue = queue_path(&entry.queue);
        let wait = Wait { queue: queue.clone(), seq, shared: waiter == Mode::Shared };
        let mut waiting = self.hub.wait(wait);
        let mut epochs = self.connections.epochs();
        // Otherwise the server does not know that we wait for this one.
        let is_expected = waiting.known.is_some();
        let mut following = None;
        loop {
            let epoch = *epochs.borrow_and_update();
            let until = match waiting.known.take().filter(|known| known.epoch == epoch) {
                Some(known) => known.until,
                None => {
                    if !is_expected {
                        following = Some(self.in_time(self.connections.follow(&queue)).await?);
                    }
                    let look = self.look(&queue, entry, seq, waiter, following.is_some());
                    match self.in_time(look).await? {
                        Some(left) => Instant::now() + left,
                        None => return Ok(()),
                    }
                }
            };
            let until = until.min(Instant::now() + recheck) + LITTLE;
            tokio::select! {
                biased;
                () = waiting.over() => return Ok(()),
                _ = epochs.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
            drop(following.take());
        }
    }

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
        let mut answer = self.connections.call(&call).await?;
        answer.is_ok().then(|| answer.natural().map(Duration::from_micros)).transpose()
    }

    pub(super) async fn wait_changed(
        &self,
        queue: &QueueKey,
        revision: u64,
        recheck: Duration,
    ) -> Result<()> {
        let mut epochs = self.connections.epochs();
        let mut following = self.in_time(self.connections.follow(&queue_path(queue))).await?;
        let Some(Read { count: Some(count), expires, .. }) = self.reads.of(queue, revision) else {
            // Something may have been missed: the caller reads again, and by then we listen.
            return Ok(());
        };
        let limit = Instant::now() + recheck;
        let limit = expires.map_or(limit, |expires| limit.min(expires + LITTLE));
        tokio::select! {
            biased;
            () = following.other_than(count) => {}
            _ = epochs.changed() => {}
            () = tokio::time::sleep_until(limit.into()) => {}
        }
        Ok(())
    }

    /// What the server said of what blocks, as of this connection.
    pub(super) fn known(&self, epoch: u64, left: Duration) -> Known {
        Known { epoch, until: Instant::now() + left }
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let late = || Error::new(ErrorKind::Unavailable, "watch", "no answer in time");
        tokio::time::timeout(self.patience, work).await.unwrap_or_else(|_| Err(late()))
    }
}
