//! Entries whose session is over and that Consul has kept, because of a lock-delay.
//!
//! Consul's lock-delay keeps a key from being locked for a while after the session that had it was ended by force:
//! whoever had it may still believe that he has. Each of our entries has a key of its own, so with a lock-delay they
//! are not deleted with their session. They stay, in nobody's hands, and block whoever comes after them until Consul lets
//! one of those who found them lock them: who then deletes them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::client::Connections;
use super::entry::name_of;
use super::keys::Keys;
use super::kv::{Operation, Outcome, Pair, transact};
use super::txn::Transactions;
use crate::backend::server::keyed::Keyed;

/// How often it is tried in one lock-delay, and within which bounds.
const TRIES: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Those that were found.
pub(super) struct Leftovers(Arc<Shared>);

struct Shared {
    connections: Arc<Connections>,
    keyed: Arc<Keyed<Transactions>>,
    pause: Duration,
    /// The keys that are being removed, one task each.
    removing: Mutex<HashSet<String>>,
}

impl Leftovers {
    pub(super) fn new(
        connections: Arc<Connections>,
        keyed: Arc<Keyed<Transactions>>,
        lock_delay: Duration,
    ) -> Self {
        let pause = match lock_delay {
            // Those of others who have one.
            Duration::ZERO => LONGEST_PAUSE,
            delay => (delay / TRIES).clamp(SHORTEST_PAUSE, LONGEST_PAUSE),
        };
        Self(Arc::new(Shared { connections, keyed, pause, removing: Mutex::default() }))
    }

    /// Has those among these keys removed, as soon as Consul permits it.
    pub(super) fn remove(&self, keys: &Keys, pairs: &[Pair]) {
        for pair in pairs.iter().filter(|pair| pair.is_left() && name_of(pair, keys).is_some()) {
            if self.0.removing().insert(pair.key.clone()) {
                let (shared, pair) = (Arc::clone(&self.0), pair.clone());
                tokio::spawn(async move {
                    shared.remove(&pair).await;
                    shared.removing().remove(&pair.key);
                });
            }
        }
    }
}

impl Shared {
    async fn remove(&self, pair: &Pair) {
        // Without a session of ours somebody else has to do it: this one is closed.
        while let Ok(admission) = self.keyed.admissions.any()
            && let Ok(id) = self.keyed.store.id("leave", admission.session)
        {
            let steps = [
                Operation::is_unchanged(&*pair.key, pair.modify_index),
                Operation::lock(&*pair.key, b"", &*id),
                Operation::delete(&*pair.key),
            ];
            match transact(&self.connections, "leave", &steps).await {
                Ok(Outcome::Done(_)) => return,
                // Somebody else was faster.
                Ok(Outcome::Refused(refusal)) if refusal.nth == 0 && !refusal.is_of_delay() => {
                    return;
                }
                Ok(Outcome::Refused(_)) | Err(_) => tokio::time::sleep(self.pause).await,
            }
        }
    }

    fn removing(&self) -> MutexGuard<'_, HashSet<String>> {
        self.removing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
