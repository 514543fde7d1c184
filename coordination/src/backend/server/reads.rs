//! As of when queues were read last: whoever waits for a change goes on from there.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::bounded_cache::BoundedCache;
use crate::key::QueueKey;

/// As of when each queue was read last, in whatever the store counts, and the revision of that listing.
///
/// A listing has a revision of its own: what the store counts moves with every other queue too.
pub(crate) struct Reads<T>(BoundedCache<QueueKey, (u64, T)>);

impl<T> Default for Reads<T> {
    fn default() -> Self {
        Self(BoundedCache::default())
    }
}

impl<T: Copy> Reads<T> {
    /// A queue was read. The last read counts and not the newest: a store that was restored counts from less.
    pub(crate) fn note(&self, queue: &QueueKey, revision: u64, at: T) {
        self.0.note(queue.clone(), (revision, at));
    }

    /// As of when the queue was read last, if it was this listing. Otherwise somebody else has read it since: whoever
    /// asks reads again.
    pub(crate) fn at(&self, queue: &QueueKey, revision: u64) -> Option<T> {
        let read = self.0.get(queue, |read| *read);
        read.filter(|(last, _)| *last == revision).map(|(_, at)| at)
    }
}

/// A number for what is listed, which differs where that differs.
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
