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

/// The pause after which a waiter or an observer reads the store itself, if no blocking query is left that would tell it of a
/// change.
const UNTOLD_PACE: Duration = Duration::from_millis(250);

#[async_trait]
impl Watching for Consul {
    /// The blocking query for the entry's key is sent with the entry's number as its index. So Consul answers at once if the key
    /// has changed since the entry was entered, and no change is missed. The server answers each query after about one second at
    /// the latest (`LONGEST_QUERY`), and then the query is sent again. So the key is read every second, and `recheck` is not
    /// needed. If the query fails, this call returns, and its caller reads the store.
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
            // An answer without the key may be older than the entry. Such an answer proves that the entry is gone only if the index
            // of the answer is not smaller than the entry's number.
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
            // Both queries for single keys and queues are taken. The query that all waiters share returns only names of keys, so
            // it does not show an update of the blocker, which can end the wait of a shared waiter. So a shared waiter reads the
            // store after a pause.
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
        // `None`: the index of this listing is no longer known, because the queue was read again with another result, or because
        // the index was forgotten (`reads.rs`). In that case this call returns, and its caller reads the queue again.
        let Some(index) = self.reads.at(queue, listing) else { return Ok(()) };
        let was_empty = listing == reads::revision_of::<()>([]);
        let subject = Subject::Names(self.txn_kv.keys(queue).prefix().to_owned());
        let changed = async {
            let Some(mut seen) = self.watches.own(subject, index) else {
                return tokio::time::sleep(UNTOLD_PACE).await;
            };
            let is_nothing = |seen: &Seen| was_empty && seen.names.is_empty();
            let is_new = |seen: &Seen| {
                // If a queue has no keys, Consul answers with the index of all other keys, which rises without any change in this
                // queue. So if the queue was empty and still has no keys, the answer is ignored. An index that is lower than before
                // means that Consul's data was restored from a snapshot: the caller reads again.
                !is_nothing(seen) && (seen.index > index || (1..index).contains(&seen.index))
            };
            drop(seen.wait_for(is_new).await);
        };
        let _ = timeout(recheck, changed).await;
        Ok(())
    }
}
