//! Waiting: for the end of an entry, and for a change of a queue.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::Consul;
use super::entry::entry_of;
use super::kv::Pair;
use super::watch::{Seen, Subject, Watch};
use crate::backend::{EntryRef, Mode};
use crate::error::Result;
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs whoever waits for it one read more.
const REMEMBERED: usize = 1024;
/// How often one looks for himself for whom there is no query.
const UNTOLD_PACE: Duration = Duration::from_millis(250);

/// The index that each queue was read with last.
///
/// A listing has a revision of its own: Consul's index of a queue that is empty moves with all others.
#[derive(Default)]
pub(super) struct Reads(Mutex<HashMap<QueueKey, Read>>);

#[derive(Clone, Copy)]
struct Read {
    listing: u64,
    index: u64,
}

impl Reads {
    /// A queue was read; answers the revision of the listing.
    pub(super) fn note(&self, queue: &QueueKey, pairs: &[&Pair], index: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        for pair in pairs {
            (&pair.key, pair.modify_index, pair.is_locked()).hash(&mut hasher);
        }
        let listing = hasher.finish();
        let mut reads = self.reads();
        if reads.len() >= REMEMBERED && !reads.contains_key(queue) {
            reads.clear();
        }
        // The last one counts and not the newest: a store that was restored has smaller indices.
        reads.insert(queue.clone(), Read { listing, index });
        listing
    }

    /// The index of the last read, if it was this listing.
    fn index(&self, queue: &QueueKey, listing: u64) -> Option<u64> {
        let reads = self.reads();
        reads.get(queue).filter(|read| read.listing == listing).map(|read| read.index)
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<QueueKey, Read>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Consul {
    /// The query answers at once when the entry has changed since it was created: nothing can be missed.
    pub(super) async fn wait_gone(&self, entry: &EntryRef, seq: u64, waiter: Mode) {
        let keys = self.keys(&entry.queue);
        let subject = Subject::Key(self.key(entry));
        let is_own = self.slots.own(entry).is_some();
        let is_over = |seen: &Seen| {
            // There may have been none before it was made.
            let Some(pair) = &seen.pair else { return seen.index >= seq };
            if !pair.is_locked() {
                self.leftovers.remove(&keys, std::slice::from_ref(pair));
                if is_own {
                    return true;
                }
            }
            let blocks =
                |pair| entry_of(pair, &keys).is_some_and(|entry| entry.mode.blocks(waiter));
            pair.create_index != seq || !blocks(pair)
        };
        match self.watches.watch(subject, seq, waiter == Mode::Exclusive) {
            // A query that ended without an answer leaves its waiters to look for themselves.
            Watch::Own(mut seen) => drop(seen.wait_for(is_over).await),
            // The names are asked for again in time.
            Watch::Shared(told) => drop(told.await),
            Watch::None => tokio::time::sleep(UNTOLD_PACE).await,
        }
    }

    pub(super) async fn wait_changed(
        &self,
        queue: &QueueKey,
        listing: u64,
        recheck: Duration,
    ) -> Result<()> {
        // Read by somebody else since: the caller reads again.
        let Some(index) = self.reads.index(queue, listing) else { return Ok(()) };
        let subject = Subject::Prefix(self.keys(queue).prefix().to_owned());
        let changed = async {
            match self.watches.watch(subject, index, false) {
                Watch::Own(mut seen) => {
                    let is_new =
                        |seen: &Seen| seen.index > index || (1..index).contains(&seen.index);
                    drop(seen.wait_for(is_new).await);
                }
                Watch::Shared(_) | Watch::None => tokio::time::sleep(UNTOLD_PACE).await,
            }
        };
        let _ = tokio::time::timeout(recheck, changed).await;
        Ok(())
    }
}
