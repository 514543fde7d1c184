//! The index that each queue was read with last: whoever waits for a change goes on from there.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use super::kv::Pair;
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs whoever waits for it one read more.
const REMEMBERED: usize = 1024;

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
    pub(super) fn index(&self, queue: &QueueKey, listing: u64) -> Option<u64> {
        let reads = self.reads();
        reads.get(queue).filter(|read| read.listing == listing).map(|read| read.index)
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<QueueKey, Read>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
