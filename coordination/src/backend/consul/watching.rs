//! Waiting: for the end of an entry, and for a change of a queue.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::Consul;
use super::active_watches::{Seen, Subject};
use super::entry::entry_of;
use crate::backend::server::reads;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// How often a waiter reads the store if there is no query for it.
const UNTOLD_PACE: Duration = Duration::from_millis(250);

#[async_trait]
impl Watching for Consul {
    /// A query for the entry's key has the entry's number as its index. So Consul answers it at once if the key has changed since
    /// the entry was entered, and no change is missed. Each query is answered, and sent again, within any `recheck`. If it fails,
    /// its waiters return, and their callers read the store.
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        _recheck: Duration,
    ) -> Result<()> {
        let (keys, key) = (self.txn_kv.keys(&entry.queue), self.txn_kv.key(entry));
        let is_own = self.txn_kv.key_pool.own(entry).is_some();
        let is_over = |seen: &Seen| {
            // If the key is absent, the answer may be from before the entry was entered. Only from the entry's number on does the
            // answer's index prove that the entry is gone.
            let Some(pair) = &seen.pair else { return seen.index >= seq };
            if !pair.is_locked() {
                self.leftovers.remove(&keys, std::slice::from_ref(pair));
                if is_own {
                    return true;
                }
            }
            let blocks =
                |pair| entry_of(pair, &keys).is_some_and(|entry| entry.mode.blocks(waiter));
            pair.create_index != seq || !blocks(pair)
        };
        match self.watches.own(Subject::Key(key.clone()), seq) {
            Some(mut seen) => drop(seen.wait_for(is_over).await),
            // The shared query has the names of keys only. An update, which may unblock a shared waiter, does not show in them.
            None if waiter == Mode::Shared => tokio::time::sleep(UNTOLD_PACE).await,
            None => {
                let mut shared = self.watches.shared(&key);
                let is_gone = |all: &Seen| all.index >= seq && !all.names.contains(&key);
                tokio::select! {
                    _ = shared.all.wait_for(is_gone) => {}
                    _ = shared.seen.wait_for(is_over) => {}
                }
            }
        }
        Ok(())
    }

    async fn changed(&self, queue: &QueueKey, listing: u64, recheck: Duration) -> Result<()> {
        // `None`: somebody else has read the queue since, with another result. The caller reads again.
        let Some(index) = self.reads.at(queue, listing) else { return Ok(()) };
        let was_empty = listing == reads::revision_of::<()>([]);
        let subject = Subject::Names(self.txn_kv.keys(queue).prefix().to_owned());
        let changed = async {
            let Some(mut seen) = self.watches.own(subject, index) else {
                return tokio::time::sleep(UNTOLD_PACE).await;
            };
            let is_nothing = |seen: &Seen| was_empty && seen.names.is_empty();
            let is_new = |seen: &Seen| {
                // If there are no keys, Consul answers with the index of all others, which rises without any change in this
                // queue. A lower index means that Consul's data was restored: the caller reads again.
                !is_nothing(seen) && (seen.index > index || (1..index).contains(&seen.index))
            };
            drop(seen.wait_for(is_new).await);
        };
        let _ = timeout(recheck, changed).await;
        Ok(())
    }
}
