//! A cache of facts about queues. It saves the requests that would ask the store for these facts again.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

/// How many keys a cache remembers by default, mostly one for each queue. If a queue was forgotten, the next use of the queue costs
/// one more request.
const REMEMBERED: usize = 1024;

/// A bounded map. If the map is full when a new key is added, all other keys are forgotten. So use it only for facts that can be
/// read from the store again.
pub(crate) struct BoundedCache<K, V> {
    most: usize,
    known: Mutex<HashMap<K, V>>,
}

impl<K, V> Default for BoundedCache<K, V> {
    fn default() -> Self {
        Self::of_at_most(REMEMBERED)
    }
}

impl<K, V> BoundedCache<K, V> {
    pub(crate) fn of_at_most(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<K, V>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Eq + Hash, V> BoundedCache<K, V> {
    /// Remembers this value for a key, in place of any earlier value.
    pub(crate) fn note(&self, key: K, value: V) {
        self.update(key, |known| *known = Some(value));
    }

    /// Changes what is remembered of a key. `change` gets `None` if nothing is remembered, and leaves `None` to forget the key.
    pub(crate) fn update<T>(&self, key: K, change: impl FnOnce(&mut Option<V>) -> T) -> T {
        let mut known = self.known();
        let mut value = known.remove(&key);
        let changed = change(&mut value);
        if let Some(value) = value {
            if known.len() >= self.most {
                known.clear();
            }
            known.insert(key, value);
        }
        changed
    }

    /// Reads what is remembered of a key.
    pub(crate) fn get<Q, T>(&self, key: &Q, look: impl FnOnce(&V) -> T) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.known().get(key).map(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let memo = BoundedCache::default();
        memo.note("a", 1);
        memo.note("a", 2);
        assert_eq!(memo.get("a", |known| *known), Some(2));
        assert_eq!(memo.get("b", |known| *known), None);
    }

    #[test]
    fn what_was_taken_out_is_forgotten() {
        let memo = BoundedCache::default();
        memo.note("a", 1);
        assert_eq!(memo.update("a", Option::take), Some(1));
        assert_eq!(memo.update("a", Option::take), None);
    }

    #[test]
    fn no_more_is_remembered_than_may_be() {
        let memo = BoundedCache::of_at_most(2);
        memo.note("a", 1);
        memo.note("b", 1);
        memo.note("b", 2);
        assert_eq!(memo.get("a", |known| *known), Some(1), "there was room for both");
        memo.note("c", 1);
        assert_eq!((memo.get("a", |_| ()), memo.get("b", |_| ())), (None, None));
        assert_eq!(memo.get("c", |known| *known), Some(1));
    }
}
