//! Watches that are shared: a key is watched once at the server, for all callers in this process who wait for it.
//!
//! A watch *lingers*: it stays for a moment after its last waiter has gone, because a process that takes a lock again and again
//! waits for the same keys each time. This module decides when a watch begins and when it ends; the code of each store then tells
//! its server.
//!
//! One mutex guards the map of watches. So if a waiter joins a watch while a sweep ends idle watches, one of the two comes first.
//! If the waiter is first, the sweep sees the waiter's receiver, and keeps the watch. If the sweep is first, the waiter finds no
//! watch, and has to begin a new one. Without the mutex, a waiter could get a receiver of a watch that a sweep is just ending at
//! the server, and would wait in vain.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long a watch stays without a waiter, at least.
const LINGER: Duration = Duration::from_secs(1);
/// How often the stores call [`sweep`](SharedWatches::sweep) to find watches without a waiter.
pub(crate) const SWEEP: Duration = Duration::from_millis(500);

/// The keys that are watched, each with a state `S`: what its waiters need to know of the key.
pub(crate) struct SharedWatches<K, S> {
    linger: Duration,
    watched: Mutex<HashMap<K, Watched<S>>>,
    /// The last number that [`next_number`](SharedWatches::next_number) has returned.
    told: AtomicU64,
}

struct Watched<S> {
    /// Has the state `S`, and gives it to the waiters; each waiter has a receiver.
    seen: watch::Sender<S>,
    /// When a sweep first found no waiter of this watch; `None`: it had a waiter at the last sweep, or a waiter has joined since.
    idle_since: Option<Instant>,
}

impl<K, S> Default for SharedWatches<K, S> {
    fn default() -> Self {
        Self { linger: LINGER, watched: Mutex::default(), told: AtomicU64::new(0) }
    }
}

impl<K, S> SharedWatches<K, S> {
    /// Makes an empty map. Its watches stay at least this long without a waiter.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn lingering(linger: Duration) -> Self {
        Self { linger, ..Self::default() }
    }
}

impl<K: Clone + Eq + Hash, S: Default> SharedWatches<K, S> {
    /// Begins to wait for changes of a key. True: the key was not watched before, and the caller must begin the watch at the
    /// server.
    ///
    /// The receiver fails when the watch has ended. Changes may be missed from then on, so the waiter has to read the key.
    pub(crate) fn join(&self, key: &K) -> (watch::Receiver<S>, bool) {
        let mut watched = self.watched();
        let is_new = !watched.contains_key(key);
        let one = watched.entry(key.clone()).or_insert_with(|| Watched {
            seen: watch::Sender::new(S::default()),
            idle_since: None,
        });
        one.idle_since = None;
        // The receiver is made before the mutex is released, so that from then on every sweep sees the receiver and keeps the
        // watch.
        (one.seen.subscribe(), is_new)
    }

    /// A receiver of the key's watch; `None`: the key is not watched.
    pub(crate) fn find(&self, key: &K) -> Option<watch::Receiver<S>> {
        self.watched().get(key).map(|watched| watched.seen.subscribe())
    }

    /// Changes the state of a watched key. If `change` returns true, the waiters are woken. Returns false if the key is not
    /// watched.
    pub(crate) fn tell(&self, key: &K, change: impl FnOnce(&mut S) -> bool) -> bool {
        let watched = self.watched();
        let Some(watched) = watched.get(key) else { return false };
        watched.seen.send_if_modified(change);
        true
    }

    /// A number that no call has returned before, for stores that number the changes in `S`. All keys share one counter. If each
    /// watch had its own counter, a new watch of a key would use the numbers of the key's last watch again, and a waiter would take
    /// a new state for an old one with the same number.
    pub(crate) fn next_number(&self) -> u64 {
        self.told.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends the watches that have had no waiter for the linger time, and returns their keys.
    pub(crate) fn sweep(&self) -> Vec<K> {
        let is_over = |_: &K, watched: &mut Watched<S>| watched.is_over(self.linger);
        self.watched().extract_if(is_over).map(|(key, _)| key).collect()
    }

    /// Like [`sweep`](Self::sweep), for one key. Returns true if the key is not watched any more.
    pub(crate) fn sweep_one(&self, key: &K) -> bool {
        let mut watched = self.watched();
        let is_over = watched.get_mut(key).is_none_or(|watched| watched.is_over(self.linger));
        if is_over {
            watched.remove(key);
        }
        is_over
    }

    /// Ends the watch of a key if nobody waits for it now, without the linger time. Returns true if the key is not watched any
    /// more.
    pub(crate) fn end_if_idle(&self, key: &K) -> bool {
        let mut watched = self.watched();
        let is_idle = watched.get(key).is_none_or(Watched::is_idle);
        if is_idle {
            watched.remove(key);
        }
        is_idle
    }

    /// Ends a watch, even if somebody waits: its sender is dropped, so the receivers of its waiters fail.
    pub(crate) fn end(&self, key: &K) {
        self.watched().remove(key);
    }

    /// Ends all watches, because the connection broke. The receivers of their waiters fail; the waiters read their keys, and join
    /// again.
    pub(crate) fn end_all(&self) {
        self.watched().clear();
    }

    /// For how many of the watched keys `is` is true.
    #[cfg(feature = "consul")]
    pub(crate) fn count(&self, is: impl Fn(&K) -> bool) -> usize {
        self.watched().keys().filter(|key| is(key)).count()
    }

    pub(crate) fn keys(&self) -> Vec<K> {
        self.watched().keys().cloned().collect()
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<K, Watched<S>>> {
        self.watched.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<S> Watched<S> {
    fn is_idle(&self) -> bool {
        self.seen.receiver_count() == 0
    }

    /// Whether the watch has had no waiter for at least the time `linger`. The time is counted from the first call of this function
    /// that finds no waiter, which is a little after the last waiter has gone.
    fn is_over(&mut self, linger: Duration) -> bool {
        if !self.is_idle() {
            self.idle_since = None;
            return false;
        }
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= linger
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// Ten times what a busy machine withholds between two lines.
    const MOMENT: Duration = Duration::from_millis(500);

    fn hub() -> SharedWatches<&'static str, u64> {
        SharedWatches { linger: MOMENT, ..SharedWatches::default() }
    }

    fn set(to: u64) -> impl FnOnce(&mut u64) -> bool {
        move |seen| {
            *seen = to;
            true
        }
    }

    #[test]
    fn a_watch_is_shared_by_all_who_wait_for_its_key() {
        let hub = hub();
        let ((first, is_new), (second, again)) = (hub.join(&"a"), hub.join(&"a"));
        assert!(is_new && !again && hub.join(&"b").1);
        assert!(hub.tell(&"a", set(7)));
        assert_eq!((*first.borrow(), *second.borrow()), (7, 7));
        assert!(second.has_changed().expect("it is watched"));
        assert!(hub.tell(&"a", |_| false));
        assert!(!hub.tell(&"c", set(7)), "nobody waits for that");
    }

    #[test]
    fn a_watch_lingers_after_its_last_waiter() {
        let hub = hub();
        let (waiter, _) = hub.join(&"a");
        sleep(2 * MOMENT);
        assert!(hub.sweep().is_empty(), "somebody waits");
        drop(waiter);
        assert!(hub.sweep().is_empty() && !hub.sweep_one(&"a"), "nobody has waited for no time");
        sleep(2 * MOMENT);
        assert!(!hub.join(&"a").1, "it has lingered");
        assert!(hub.sweep().is_empty(), "somebody has waited just now");
        sleep(2 * MOMENT);
        assert_eq!(hub.sweep(), ["a"]);
        assert!(hub.join(&"a").1 && hub.sweep_one(&"b"));
    }

    #[test]
    fn whoever_waits_is_told_when_watches_end_and_joins_again() {
        let hub = hub();
        let (waiter, _) = hub.join(&"a");
        hub.end_all();
        assert!(waiter.has_changed().is_err() && hub.find(&"a").is_none());
        assert!(hub.join(&"a").1, "it has to be begun again");
    }

    #[test]
    fn what_somebody_waits_for_is_not_ended_as_idle() {
        let hub = hub();
        let (waiter, _) = hub.join(&"a");
        assert!(!hub.end_if_idle(&"a") && hub.keys() == ["a"]);
        drop(waiter);
        assert!(hub.end_if_idle(&"a") && hub.keys().is_empty() && hub.end_if_idle(&"a"));
    }

    #[test]
    fn a_number_is_never_given_again() {
        let hub = hub();
        assert!(hub.next_number() < hub.next_number());
    }
}
