//! What has to be known of a write for as long as one of its calls may come.
//!
//! A call that was given up may be made again, and what was known when it was first sent decides then what may be done. So this
//! is no cache: nothing is forgotten of a write that its caller has not dropped. A caller that gives up drops its [`Write`], and
//! nothing repeats it any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::backend::Write;

/// How many writes are remembered before those are looked for that were dropped.
const FEW: usize = 64;

/// What is known of writes, by their ids.
pub(crate) struct PendingWrites<V>(Mutex<Known<V>>);

struct Known<V> {
    writes: HashMap<u64, (Weak<()>, V)>,
    /// When so many writes are remembered, those that were dropped are looked for. It is twice as many as were left then, so
    /// that each write is looked at a few times at most.
    many: usize,
}

impl<V> Default for PendingWrites<V> {
    fn default() -> Self {
        Self(Mutex::new(Known { writes: HashMap::new(), many: FEW }))
    }
}

impl<V: Copy> PendingWrites<V> {
    /// What is known of this write.
    pub(crate) fn get(&self, write: &Write) -> Option<V> {
        self.known().writes.get(&write.id).map(|(_, known)| *known)
    }

    /// Changes what is known of this write. `change` gets `None` if nothing is known, and leaves `None` to forget the write.
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

    /// Forgets a write that was answered, or of which no other call can take effect.
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
