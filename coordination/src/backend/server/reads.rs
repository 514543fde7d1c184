//! Where in the store's history each queue was last read. A wait for a change of the queue begins at that position, so that it
//! misses no change that came after the read.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::bounded_cache::BoundedCache;
use crate::key::QueueKey;

/// For each queue, the revision of the listing that was last read, and the store's own position `T` at that moment: for instance
/// etcd's revision or Consul's index.
///
/// The store's position itself is not used as the listing's revision, because the position also rises when other queues change.
pub(crate) struct Reads<T>(BoundedCache<QueueKey, (u64, T)>);

impl<T> Default for Reads<T> {
    fn default() -> Self {
        Self(BoundedCache::default())
    }
}

impl<T: Copy> Reads<T> {
    /// Notes that a queue was read. The newest read replaces the one before even if its position is lower: a store that was
    /// restored from a backup goes on from a lower position.
    pub(crate) fn note(&self, queue: &QueueKey, revision: u64, at: T) {
        self.0.note(queue.clone(), (revision, at));
    }

    /// The store's position when the listing with this `revision` was read. `None`: another listing of the queue was read since, or
    /// the queue was forgotten, so the caller has to read the queue again.
    pub(crate) fn at(&self, queue: &QueueKey, revision: u64) -> Option<T> {
        let read = self.0.get(queue, |read| *read);
        read.filter(|(last, _)| *last == revision).map(|(_, at)| at)
    }
}

/// A hash of what is listed, so that different listings have different revisions.
pub(crate) fn revision_of<T: Hash>(listed: impl IntoIterator<Item = T>) -> u64 {
    let mut hasher = DefaultHasher::new();
    listed.into_iter().for_each(|part| part.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_listing_is_known() {
        let (reads, queue) = (Reads::default(), QueueKey::new("lock", "a", 10).expect("a name"));
        let (first, second) = (revision_of([(1, "a")]), revision_of([(1, "a"), (2, "b")]));
        assert_ne!(first, second);
        reads.note(&queue, first, 7);
        assert_eq!((reads.at(&queue, first), reads.at(&queue, second)), (Some(7), None));
        reads.note(&queue, second, 6);
        assert_eq!((reads.at(&queue, first), reads.at(&queue, second)), (None, Some(6)));
    }
}
