//! What a store has to remember of a write as long as a call of the write may be sent or repeated.
//!
//! If a call of a write was given up, the caller may repeat it. Whether the repeated call may change anything depends on what the
//! store knew when the first call was sent. So this is no cache: a write stays remembered until it is answered, or its caller drops
//! the [`Write`]. After that drop, nobody repeats the write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::backend::Write;

/// As long as fewer writes are remembered than this, the map is not searched for writes that were dropped.
const FEW: usize = 64;

/// What is remembered of each write, by the write's id.
pub(crate) struct PendingWrites<V>(Mutex<Known<V>>);

struct Known<V> {
    writes: HashMap<u64, (Weak<()>, V)>,
    /// When this many writes are remembered, the map is searched for writes that were dropped. After each search, this number is
    /// set to twice as many as were left, but at least [`FEW`]. So the searches stay rare.
    many: usize,
}

impl<V> Default for PendingWrites<V> {
    fn default() -> Self {
        Self(Mutex::new(Known { writes: HashMap::new(), many: FEW }))
    }
}

impl<V: Copy> PendingWrites<V> {
    /// What is remembered of this write.
    pub(crate) fn get(&self, write: &Write) -> Option<V> {
        self.known().writes.get(&write.id).map(|(_, known)| *known)
    }

    /// Changes what is remembered of this write. `change` gets `None` if nothing is remembered, and leaves `None` to forget the
    /// write.
    pub(crate) fn update<T>(&self, write: &Write, change: impl FnOnce(&mut Option<V>) -> T) -> T {
        let mut known = self.known();
        let mut value = known.writes.remove(&write.id).map(|(_, value)| value);
        let changed = change(&mut value);
        if let Some(value) = value {
            known.make_room();
            known.writes.insert(write.id, (Arc::downgrade(&write.pending), value));
        }
        changed
    }

    /// Forgets a write. To be called when the write was answered, or when no other call of it can take effect any more.
    pub(crate) fn forget(&self, write: &Write) {
        self.known().writes.remove(&write.id);
    }

    fn known(&self) -> MutexGuard<'_, Known<V>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<V> Known<V> {
    fn make_room(&mut self) {
        if self.writes.len() >= self.many {
            self.writes.retain(|_, (pending, _)| pending.strong_count() > 0);
            self.many = FEW.max(2 * self.writes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::QueueKey;

    fn write() -> Write {
        Write::new(&QueueKey::new("lock", "a", 10).expect("a valid name"), None, None)
    }

    #[test]
    fn only_writes_that_were_dropped_are_forgotten() {
        let pending = PendingWrites::default();
        let kept: Vec<_> = (0..1_000).map(|_| write()).collect();
        for (number, write) in kept.iter().enumerate() {
            pending.update(write, |known| *known = Some(number));
            for _ in 0..10 {
                pending.update(&self::write(), |known| *known = Some(0));
            }
        }
        for (number, write) in kept.iter().enumerate() {
            assert_eq!(pending.get(write), Some(number));
        }
        assert!(pending.known().writes.len() <= 2 * kept.len() + FEW);
        drop(kept);
        (0..3_000).for_each(|_| pending.update(&write(), |known| *known = Some(0)));
        assert!(pending.known().writes.len() <= 2 * FEW, "nothing is left of what was dropped");
    }

    #[test]
    fn what_was_answered_is_forgotten() {
        let (pending, write) = (PendingWrites::default(), write());
        assert_eq!(pending.get(&write), None);
        pending.update(&write, |known| *known = Some(1));
        assert_eq!((pending.get(&write), pending.update(&write, Option::take)), (Some(1), Some(1)));
        assert_eq!(pending.get(&write), None);
        pending.update(&write, |known| *known = Some(2));
        pending.forget(&write);
        assert_eq!(pending.get(&write), None);
    }
}
