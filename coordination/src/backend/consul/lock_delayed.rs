//! Keys that Consul has kept, because of a lock-delay, although their session is over.
//!
//! If a session is ended by force, its client may still believe that it has the session's keys. So Consul's lock-delay prevents
//! for a while that these keys are locked again. Each of our entries has a key of its own, so a next entry would not be delayed
//! if the keys were deleted with the session. Therefore, with a lock-delay, they are not deleted: they stay, locked by nobody,
//! and block the entries behind them. Clients that find such a key try to lock it until Consul permits that, and the client that
//! succeeds deletes it. The keys of members are treated in the same way.
//!
//! Consul does not say when the delay began. So a client that finds a key tries to lock it soon, because the delay may already be
//! over. If Consul refuses, the client tries again when its own lock-delay has passed since it found the key, and after that at
//! growing intervals. Many clients may find the same key. So before each try a client waits for a short random time, and then reads
//! the key again: the first client removes the key, and the others find that it is gone.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rand::RngExt;

use super::client::Connections;
use super::entry::name_of;
use super::kv::{Operation, Outcome, Pair, read_all};
use super::txn::Transactions;
use crate::backend::server::txn_kv::{Keys, TxnKv};
use crate::env;
use crate::panics::caught;
use crate::retry::DecorrelatedJitter;

/// Before each try to lock a key, a client waits for a random time up to this, so that many clients do not try at the same
/// moment. It is short, because waiters wait longer by this time, and have to get the lock within two seconds (`L2`).
const SPREAD: Duration = Duration::from_millis(250);
/// The shortest and the longest pause between tries after our own lock-delay is over. Consul may still refuse then, if the client
/// that had locked the key has set a longer lock-delay than ours.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The shortest time between two searches for keys of members whose processes have crashed; the longest is twice as long.
const SWEEP: Duration = Duration::from_secs(60);
/// The longest time until the next search for keys of members, after an entry of a crashed process was removed. That process has
/// probably left its member's key, too.
const EARLY_SWEEP: Duration = Duration::from_secs(5);

/// Removes left-over keys: those that Consul has kept because of a lock-delay although their session is over.
#[derive(Clone)]
pub(super) struct Leftovers(Arc<Inner>);

struct Inner {
    txn_kv: Arc<TxnKv<Transactions>>,
    connections: Arc<Connections>,
    /// The prefix of the keys of all members.
    members: String,
    /// The lock-delay of our own sessions. If it is zero, left-over keys of entries are removed all the same, because other
    /// clients may have a lock-delay; but left-over keys of members are not searched for.
    delay: Duration,
    /// The keys that tasks of this process try to remove at the moment, one task for each key.
    removing: Mutex<HashSet<String>>,
    /// When to search for left-over keys of members next.
    next_sweep: Mutex<Instant>,
}

/// The outcome of one try to remove a key.
enum Removal {
    /// This client has deleted the key.
    Done,
    /// The key was gone already, or had changed: another client was faster.
    Before,
    /// The key is still there: the lock-delay is not over, or Consul did not answer.
    Kept,
    /// This process has no open session with which it could lock the key: other clients have to remove the key.
    Closed,
}

impl Leftovers {
    pub(super) fn new(
        txn_kv: Arc<TxnKv<Transactions>>,
        connections: Arc<Connections>,
        members: String,
        delay: Duration,
    ) -> Self {
        let (removing, next_sweep) = (Mutex::default(), Mutex::new(Instant::now()));
        Self(Arc::new(Inner { txn_kv, connections, members, delay, removing, next_sweep }))
    }

    /// Starts to remove those of `pairs` that are left over from entries whose sessions are over.
    pub(super) fn remove(&self, keys: &Keys, pairs: &[Pair]) {
        for pair in pairs.iter().filter(|pair| pair.is_left() && name_of(pair, keys).is_some()) {
            self.begin(pair);
        }
    }

    /// Starts to search for left-over keys of members, if the last search was long enough ago.
    pub(super) fn sweep(&self) {
        if self.0.delay.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut next = self.0.next_sweep();
        if *next <= now {
            *next = now + env::rng().random_range(SWEEP..2 * SWEEP);
            let leftovers = self.clone();
            tokio::spawn(async move {
                drop(caught("leave", leftovers.find_members()).await);
            });
        }
    }

    async fn find_members(&self) {
        let Inner { connections, members, .. } = &*self.0;
        // If the read fails, nothing is removed until the next search.
        let Ok((pairs, _)) = read_all(connections, "leave", members).await else { return };
        // Keys of other programs are left alone: a key with a `/` or `.` after the prefix is not a member's, because no encoded
        // member id has these characters.
        let is_member = |pair: &&Pair| !pair.key[members.len()..].contains(['/', '.']);
        pairs
            .iter()
            .filter(is_member)
            .filter(|pair| pair.is_left())
            .for_each(|pair| self.begin(pair));
    }

    fn begin(&self, pair: &Pair) {
        if self.0.removing().insert(pair.key.clone()) {
            let (leftovers, pair) = (Arc::downgrade(&self.0), pair.clone());
            tokio::spawn(async move {
                // If the task panics, a later read finds the key again, and another task is started.
                drop(caught("leave", remove_when_permitted(&leftovers, &pair)).await);
                if let Some(leftovers) = leftovers.upgrade() {
                    leftovers.removing().remove(&pair.key);
                }
            });
        }
    }
}

/// Tries to remove the key until it is gone, or until this process has no open session. The first try is made soon, the second when
/// our own lock-delay has passed, and further tries less and less often. Between two tries only a weak reference is held, so that
/// the tries end when the store is dropped.
async fn remove_when_permitted(leftovers: &Weak<Inner>, pair: &Pair) {
    let found = Instant::now();
    let mut pauses = DecorrelatedJitter::new(SHORTEST_PAUSE, LONGEST_PAUSE);
    let mut next = found;
    loop {
        next += env::rng().random_range(Duration::ZERO..SPREAD);
        tokio::time::sleep_until(next.into()).await;
        let Some(leftovers) = leftovers.upgrade() else { return };
        match leftovers.try_to_remove(pair).await {
            Removal::Kept => {}
            Removal::Done => return leftovers.sweep_early(pair),
            Removal::Before | Removal::Closed => return,
        }
        let (now, is_over) = (Instant::now(), found + leftovers.delay);
        next = if now < is_over { is_over } else { now + pauses.next_delay() };
    }
}

impl Inner {
    async fn try_to_remove(&self, pair: &Pair) -> Removal {
        let store = &self.txn_kv.store;
        let Ok(write_fence) = self.txn_kv.write_fences.any() else { return Removal::Closed };
        let Ok(id) = store.id("leave", write_fence.session) else { return Removal::Closed };
        let Ok((found, _)) = read_all(&self.connections, "leave", &pair.key).await else {
            return Removal::Kept;
        };
        let is_it = |other: &Pair| {
            other.key == pair.key && other.modify_index == pair.modify_index && other.is_left()
        };
        if !found.iter().any(is_it) {
            return Removal::Before;
        }
        let steps = [
            Operation::is_unchanged(&*pair.key, pair.modify_index),
            Operation::lock(&*pair.key, b"", &*id),
            Operation::delete(&*pair.key),
        ];
        match store.make("leave", &steps).await {
            Ok(Outcome::Done(_)) => Removal::Done,
            Ok(Outcome::Refused(refusal)) if refusal.nth == 0 => Removal::Before,
            Ok(Outcome::Refused(_)) | Err(_) => Removal::Kept,
        }
    }

    /// To be called after a left-over key was removed. If it was an entry's key, the entry's process has crashed, and may have
    /// left its member's key too. So the next search for keys of members is made soon.
    fn sweep_early(&self, pair: &Pair) {
        if !pair.key.starts_with(&self.members) {
            let early = Instant::now() + env::rng().random_range(Duration::ZERO..EARLY_SWEEP);
            let mut next = self.next_sweep();
            *next = early.min(*next);
        }
    }

    fn removing(&self) -> MutexGuard<'_, HashSet<String>> {
        self.removing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next_sweep(&self) -> MutexGuard<'_, Instant> {
        self.next_sweep.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
