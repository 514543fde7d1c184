//! Keys whose session is over and that Consul has kept, because of a lock-delay.
//!
//! Consul's lock-delay keeps a key from being locked for a while after the session that had it was ended by force:
//! whoever had it may still believe that he has. Each of our entries has a key of its own, so with a lock-delay they
//! are not deleted with their session. They stay, in nobody's hands, and block whoever comes after them until Consul lets
//! one of those who found them lock them: who then deletes them. So do the keys of members.
//!
//! Consul does not say when the delay began. So whoever finds a key tries once, as the delay may be over since long, and once more
//! when it is over for sure. Of many who find the same key, each at a moment of its own looks whether it is still there: the
//! first one removes it, and for the others nothing is left to try.

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

/// Within this time all who have found a key look, and try. It is added to what a waiter waits for, two seconds at most (`L2`).
const SPREAD: Duration = Duration::from_millis(250);
/// How long Consul is left alone that does not permit it though our own delay is over: whoever had the key has a longer one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long nobody looks for the keys of members whose processes have crashed: this, and up to as long again.
const SWEEP: Duration = Duration::from_secs(60);
/// The same where an entry was found whose process has crashed.
const EARLY_SWEEP: Duration = Duration::from_secs(5);

/// Those that were found.
#[derive(Clone)]
pub(super) struct Leftovers(Arc<Inner>);

struct Inner {
    txn_kv: Arc<TxnKv<Transactions>>,
    connections: Arc<Connections>,
    /// What the keys of all members begin with.
    members: String,
    /// How long Consul keeps what our own sessions had; zero: it is not known of other clients that they have a delay.
    delay: Duration,
    /// The keys that are being removed, one task each.
    removing: Mutex<HashSet<String>>,
    /// When those of members are looked for.
    next_sweep: Mutex<Instant>,
}

/// What became of a try.
enum Removal {
    /// It is gone, by us.
    Done,
    /// Somebody else was faster.
    Before,
    /// It is kept.
    Kept,
    /// Without a session of ours somebody else has to do it: this one is closed.
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

    /// Has those among these keys removed that are entries, as soon as Consul permits it.
    pub(super) fn remove(&self, keys: &Keys, pairs: &[Pair]) {
        for pair in pairs.iter().filter(|pair| pair.is_left() && name_of(pair, keys).is_some()) {
            self.begin(pair);
        }
    }

    /// Has the keys of members removed whose sessions are over, if that was not done for some time.
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
        // Of what cannot be read nothing is removed: the next time, then.
        let Ok((pairs, _)) = read_all(connections, "leave", members).await else { return };
        // What other programs have there is left alone: their names are not those that ids of members have as keys.
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
                // Given up, it is found again.
                drop(caught("leave", remove_when_permitted(&leftovers, &pair)).await);
                if let Some(leftovers) = leftovers.upgrade() {
                    leftovers.removing().remove(&pair.key);
                }
            });
        }
    }
}

/// Tries at once, when the delay is over, and then less and less often. Between two tries it keeps nothing alive.
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

    /// A process has crashed, whose entry this was: it may have been a member.
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
