//! Entries whose session is over and that Consul has kept, because of a lock-delay.
//!
//! Consul's lock-delay keeps a key from being locked for a while after the session that had it was ended by force:
//! whoever had it may still believe that he has. Each of our entries has a key of its own, so with a lock-delay they
//! are not deleted with their session. They stay, in nobody's hands, and block whoever comes after them until Consul lets
//! one of those who found them lock them: who then deletes them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::entry::name_of;
use super::kv::{Operation, Outcome, Pair};
use super::txn::Transactions;
use crate::backend::server::txn_kv::{Keys, TxnKv};
use crate::panics::caught;

/// How long Consul is left alone that does not permit it yet.
const PAUSE: Duration = Duration::from_millis(500);

/// Those that were found.
#[derive(Clone)]
pub(super) struct Leftovers {
    txn_kv: Arc<TxnKv<Transactions>>,
    /// The keys that are being removed, one task each.
    removing: Arc<Mutex<HashSet<String>>>,
}

impl Leftovers {
    pub(super) fn new(txn_kv: Arc<TxnKv<Transactions>>) -> Self {
        Self { txn_kv, removing: Arc::default() }
    }

    /// Has those among these keys removed, as soon as Consul permits it.
    pub(super) fn remove(&self, keys: &Keys, pairs: &[Pair]) {
        for pair in pairs.iter().filter(|pair| pair.is_left() && name_of(pair, keys).is_some()) {
            if self.removing().insert(pair.key.clone()) {
                let (leftovers, pair) = (self.clone(), pair.clone());
                tokio::spawn(async move {
                    // Given up, it is found again.
                    drop(caught("leave", leftovers.remove_one(&pair)).await);
                    leftovers.removing().remove(&pair.key);
                });
            }
        }
    }

    async fn remove_one(&self, pair: &Pair) {
        let store = &self.txn_kv.store;
        // Without a session of ours somebody else has to do it: this one is closed.
        while let Ok(write_fence) = self.txn_kv.write_fences.any()
            && let Ok(id) = store.id("leave", write_fence.session)
        {
            let steps = [
                Operation::is_unchanged(&*pair.key, pair.modify_index),
                Operation::lock(&*pair.key, b"", &*id),
                Operation::delete(&*pair.key),
            ];
            match store.make("leave", &steps).await {
                Ok(Outcome::Done(_)) => return,
                // Somebody else was faster.
                Ok(Outcome::Refused(refusal)) if refusal.nth == 0 => return,
                Ok(Outcome::Refused(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn removing(&self) -> MutexGuard<'_, HashSet<String>> {
        self.removing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
