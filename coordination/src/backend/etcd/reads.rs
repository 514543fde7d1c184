//! Waiting: for the end of an entry, and for a change of a queue.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue};

use super::entry::{blocker_of, revision_of, seq_of};
use super::watch::{PAUSE, Scope};
use super::{Etcd, revision_in};
use crate::backend::{EntryRef, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs whoever waits for it one read more.
const REMEMBERED: usize = 1024;

/// As of which revision of the store each queue was read last.
///
/// A listing has a revision of its own: that of the store moves with every other queue too, and
/// the newest of the queue's keys does not tell of a deletion.
#[derive(Default)]
pub(super) struct Reads(Mutex<HashMap<QueueKey, Read>>);

#[derive(Clone, Copy)]
struct Read {
    /// That of the listing.
    listing: u64,
    /// The store's.
    store: i64,
}

impl Reads {
    /// A queue was read; answers the revision of the listing.
    pub(super) fn note(&self, queue: &QueueKey, kvs: &[KeyValue], store: i64) -> u64 {
        let mut hasher = DefaultHasher::new();
        for kv in kvs {
            (kv.key(), kv.mod_revision()).hash(&mut hasher);
        }
        let listing = hasher.finish();
        let mut reads = self.reads();
        if reads.len() >= REMEMBERED && !reads.contains_key(queue) {
            reads.clear();
        }
        // The last one counts and not the newest: a store that was restored has smaller revisions.
        reads.insert(queue.clone(), Read { listing, store });
        listing
    }

    /// As of when the queue was last read, if it was this listing.
    fn store_revision(&self, queue: &QueueKey, listing: u64) -> Option<i64> {
        let reads = self.reads();
        reads.get(queue).filter(|read| read.listing == listing).map(|read| read.store)
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<QueueKey, Read>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Etcd {
    pub(super) async fn wait_gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let key = self.key(entry);
        let created = revision_of(seq);
        // Puts tell of updates only, and those free nobody but shared waiters.
        let scope = if waiter == Mode::Shared { Scope::Key } else { Scope::Deletion };
        let mut broke = false;
        loop {
            let mut watch = self.watches.watch(&key, scope).await.ok_or_else(closing)?;
            // While there is no stream the hub paces the next try.
            let Some(since) = watch.since().await else { continue };
            // A watch that is older than the entry has missed nothing of it.
            let mut known = created;
            if broke || since >= created || scope == Scope::Key && watch.changed() > created {
                match self.look(entry, seq, waiter).await? {
                    Some(revision) => known = revision,
                    None => return Ok(()),
                }
            }
            broke = true;
            loop {
                let told = async {
                    match scope {
                        Scope::Deletion => watch.deleted_after(created).await,
                        _ => watch.changed_after(known).await,
                    }
                };
                match tokio::time::timeout(recheck, told).await {
                    Ok(Some(())) => return Ok(()),
                    Ok(None) => break,
                    // Tells what was missed since we knew, if anything was.
                    Err(_) => match self.watches.replay(&key, scope, known + 1).await {
                        Some(replay) => watch = replay,
                        None => break,
                    },
                }
            }
        }
    }

    /// As of which revision the entry blocks the waiter; `None`: it does not.
    async fn look(&self, entry: &EntryRef, seq: u64, waiter: Mode) -> Result<Option<i64>> {
        let mut options = GetOptions::new();
        if waiter == Mode::Exclusive {
            options = options.with_keys_only();
        }
        let key = self.key(entry);
        let look = tokio::time::timeout(self.patience, self.get("watch", &key, options)).await;
        let found = look.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "watch", "no answer in time"))
        })?;
        let kv = found.kvs().first().filter(|kv| seq_of(kv) == seq);
        let blocker = kv.map(|kv| blocker_of(kv, &self.keys(&entry.queue), waiter)).transpose()?;
        Ok(blocker.flatten().map(|_| revision_in(found.header())))
    }

    pub(super) async fn wait_changed(
        &self,
        queue: &QueueKey,
        listing: u64,
        recheck: Duration,
    ) -> Result<()> {
        let keys = self.keys(queue);
        let moved = async {
            let (mut watch, since) = loop {
                let watch = self.watches.watch(keys.prefix(), Scope::Prefix).await;
                let mut watch = watch.ok_or_else(closing)?;
                match watch.since().await {
                    Some(since) => break (watch, since),
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            // Otherwise something was missed, or may have been: the caller reads again, and by
            // then the watch is there.
            if let Some(store) = self.reads.store_revision(queue, listing)
                && store >= since
                && watch.changed_after(store).await.is_none()
            {
                // A stream that breaks again and again must not make its users read as often.
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(recheck, moved).await.unwrap_or(Ok(()))
    }
}

fn closing() -> Error {
    Error::new(ErrorKind::Unavailable, "watch", "the backend is closing")
}
