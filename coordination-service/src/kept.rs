//! Handles of the library that are kept between requests: what they know of a name at the store would be lost with them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Handles by key.
pub(crate) struct Kept<K, V> {
    most: usize,
    all: Mutex<HashMap<K, Entry<V>>>,
}

struct Entry<V> {
    handle: V,
    /// The principal for whom it is kept.
    owner: String,
    /// The time of its last use.
    used: Instant,
}

impl<K: Hash + Eq + Clone, V: Clone> Kept<K, V> {
    /// At most so many are kept.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<K, Entry<V>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle that is kept of this key, or one that is made now and is not kept.
    pub(crate) fn get<E>(&self, key: &K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        if let Some(entry) = self.all().get_mut(key) {
            entry.used = Instant::now();
            return Ok(entry.handle.clone());
        }
        make()
    }

    /// Keeps a handle for this principal, unless one of this key is kept. If there are too many, some of those are forgotten whose
    /// principal has most of them: nobody can use up what is kept for others.
    pub(crate) fn keep(&self, owner: &str, key: K, handle: &V) {
        let mut all = self.all();
        if all.contains_key(&key) {
            return;
        }
        if all.len() >= self.most {
            forget_some(&mut all);
        }
        let (handle, owner) = (handle.clone(), owner.to_owned());
        all.insert(key, Entry { handle, owner, used: Instant::now() });
    }

    /// All handles, with the time for which nobody has used each, at one moment.
    pub(crate) fn by_age(&self) -> Vec<(V, Duration)> {
        let (all, now) = (self.all(), Instant::now());
        let unused = |entry: &Entry<V>| now.saturating_duration_since(entry.used);
        all.values().map(|entry| (entry.handle.clone(), unused(entry))).collect()
    }

    /// Forgets those of which this says so, by how long nobody has used them.
    pub(crate) fn forget(&self, is_over: impl Fn(&K, Duration) -> bool) {
        let (mut all, now) = (self.all(), Instant::now());
        all.retain(|key, entry| !is_over(key, now.saturating_duration_since(entry.used)));
    }

    /// The sum of this of all handles.
    pub(crate) fn sum(&self, of: impl Fn(&V) -> usize) -> usize {
        self.all().values().map(|entry| of(&entry.handle)).sum()
    }

    #[cfg(test)]
    pub(crate) fn has(&self, key: &K) -> bool {
        self.all().contains_key(key)
    }
}

/// Of the principal that has most, a tenth: those that were used least lately.
fn forget_some<K, V>(all: &mut HashMap<K, Entry<V>>) {
    let mut used = HashMap::<&str, Vec<Instant>>::new();
    for entry in all.values() {
        used.entry(&entry.owner).or_default().push(entry.used);
    }
    let most = used.into_iter().max_by_key(|(_, used)| used.len());
    let Some((owner, mut used)) = most else { return };
    let owner = owner.to_owned();
    let tenth = used.len() / 10;
    let (_, &mut limit, _) = used.select_nth_unstable(tenth);
    all.retain(|_, entry| entry.owner != owner || entry.used > limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_used_least_lately_are_forgotten() {
        let kept = Kept::new(20);
        let get = |key: u32| kept.get(&key, || Err(()));
        for key in 0..20 {
            kept.keep("me", key, &key);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(get(0), Ok(0), "it is kept");
        kept.keep("me", 20, &20);
        let is_there = |key: u32| kept.has(&key);
        assert!(!is_there(1) && !is_there(3) && [0, 4, 19, 20].into_iter().all(is_there));
        assert_eq!(get(1), Err(()), "nothing is kept of what cannot be made");
        assert_eq!(kept.get::<()>(&1, || Ok(1)), Ok(1));
        assert!(!is_there(1), "what is only looked at is not kept");
        kept.forget(|key, unused| *key == 4 && unused < Duration::from_secs(60));
        assert!(!is_there(4) && is_there(5));
    }

    /// What is looked at later has not been unused for longer.
    #[test]
    fn ages_are_those_of_one_moment() {
        let kept = Kept::new(1_000);
        for key in 0..1_000 {
            kept.keep("me", key, &key);
        }
        let now = Instant::now();
        kept.all().values_mut().for_each(|entry| entry.used = now);
        let mut ages = kept.by_age().into_iter().map(|(_, unused)| unused);
        let first = ages.next();
        assert!(ages.all(|unused| Some(unused) == first));
    }

    #[test]
    fn nobody_uses_up_what_is_kept_for_others() {
        let kept = Kept::new(20);
        for key in 0..9 {
            kept.keep("you", key, &key);
        }
        for key in 100..1_000 {
            std::thread::sleep(Duration::from_micros(10));
            kept.keep("me", key, &key);
        }
        assert!((0..9).all(|key| kept.has(&key)) && kept.has(&999));
        // A third one finds room, too.
        kept.keep("she", 99, &99);
        assert!((0..9).all(|key| kept.has(&key)) && kept.has(&99));
    }
}
