//! What was told of each queue before it was read last: whoever waits for a change goes on from there.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::backend::{Listing, Mode};
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs whoever waits for it one read more.
const REMEMBERED: usize = 1024;

/// What was told of each queue before it was read last.
#[derive(Default)]
pub(super) struct Reads(Mutex<HashMap<QueueKey, Read>>);

#[derive(Clone, Copy)]
pub(super) struct Read {
    revision: u64,
    /// How many messages there were when it was asked for; `None`: nobody listened.
    pub(super) count: Option<u64>,
    /// When the first of its leases may be over.
    pub(super) expires: Option<Instant>,
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

    pub(super) fn of(&self, queue: &QueueKey, revision: u64) -> Option<Read> {
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
