//! The store's revision of when each queue was read last: whoever waits for a change goes on from there.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use etcd_client::KeyValue;

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
    pub(super) fn store_revision(&self, queue: &QueueKey, listing: u64) -> Option<i64> {
        let reads = self.reads();
        reads.get(queue).filter(|read| read.listing == listing).map(|read| read.store)
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<QueueKey, Read>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
