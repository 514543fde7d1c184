//! Handles of the library that are kept between requests: what they know of a name at the store would be lost with them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Handles by key, each with the time of its last use.
pub(crate) struct Kept<K, V> {
    most: usize,
    all: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K: Hash + Eq + Clone, V: Clone> Kept<K, V> {
    /// At most so many are kept.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<K, (V, Instant)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of this key, or one that is made now. If there are too many, a tenth of them is forgotten, those that were used
    /// least lately.
    pub(crate) fn get<E>(&self, key: K, make: impl FnOnce(&K) -> Result<V, E>) -> Result<V, E> {
        let (mut all, now) = (self.all(), Instant::now());
        if let Some((known, used)) = all.get_mut(&key) {
            *used = now;
            return Ok(known.clone());
        }
        let made = make(&key)?;
        if all.len() >= self.most {
            let mut used: Vec<_> = all.values().map(|(_, used)| *used).collect();
            let (_, &mut limit, _) = used.select_nth_unstable(self.most / 10);
            all.retain(|_, (_, used)| *used > limit);
        }
        all.insert(key, (made.clone(), now));
        Ok(made)
    }

    /// Forgets those of which this says so, by how long nobody has used them.
    pub(crate) fn forget(&self, is_over: impl Fn(&K, Duration) -> bool) {
        let now = Instant::now();
        self.all().retain(|key, (_, used)| !is_over(key, now.duration_since(*used)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(key: &u32) -> Result<u32, ()> {
        Ok(*key)
    }

    #[test]
    fn those_used_least_lately_are_forgotten() {
        let kept = Kept::new(20);
        for key in 0..20 {
            assert_eq!(kept.get(key, made), Ok(key));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(kept.get(0, |_| Err(())), Ok(0), "it is kept");
        assert_eq!(kept.get(20, made), Ok(20));
        let is_there = |key| kept.all().contains_key(&key);
        assert!(!is_there(1) && !is_there(3) && [0, 4, 19, 20].into_iter().all(is_there));
        assert_eq!(kept.get(1, |_| Err(())), Err(()), "nothing is kept of what cannot be made");
        kept.forget(|key, unused| *key == 4 && unused < Duration::from_secs(60));
        assert!(!is_there(4) && is_there(5));
    }
}
