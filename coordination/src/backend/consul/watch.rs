//! Waiting: for the end of an entry, and for a change of a queue.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::Consul;
use super::entry::entry_of;
use super::watches::{Seen, Subject, Watch};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

/// How often one looks for himself for whom there is no query.
const UNTOLD_PACE: Duration = Duration::from_millis(250);

#[async_trait]
impl Watching for Consul {
    /// The query answers at once when the entry has changed since it was created: nothing can be missed. It is answered
    /// by itself sooner than any `recheck`; where it is not, the caller looks.
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let keys = self.keys(&entry.queue);
        let subject = Subject::Key(self.key(entry));
        let is_own = self.keyed.slots.own(entry).is_some();
        let is_over = |seen: &Seen| {
            // There may have been none before it was made.
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
        match self.watches.watch(subject, seq, waiter == Mode::Exclusive) {
            // A query that ended without an answer leaves its waiters to look for themselves.
            Watch::Own(mut seen) => loop {
                let (answers, mut over) = (seen.borrow().answers, false);
                let answered = seen.wait_for(|seen| {
                    over = is_over(seen);
                    over || seen.answers != answers
                });
                let is_answered = matches!(timeout(recheck, answered).await, Ok(Ok(_)));
                if over || !is_answered {
                    break;
                }
            },
            // The names are asked for again in time.
            Watch::Shared(told) => drop(told.await),
            Watch::None => tokio::time::sleep(UNTOLD_PACE).await,
        }
        Ok(())
    }

    async fn changed(&self, queue: &QueueKey, listing: u64, recheck: Duration) -> Result<()> {
        // Read by somebody else since: the caller reads again.
        let Some(index) = self.reads.at(queue, listing) else { return Ok(()) };
        let subject = Subject::Prefix(self.keys(queue).prefix().to_owned());
        let changed = async {
            match self.watches.watch(subject, index, false) {
                Watch::Own(mut seen) => {
                    let is_new =
                        |seen: &Seen| seen.index > index || (1..index).contains(&seen.index);
                    drop(seen.wait_for(is_new).await);
                }
                Watch::Shared(_) | Watch::None => tokio::time::sleep(UNTOLD_PACE).await,
            }
        };
        let _ = timeout(recheck, changed).await;
        Ok(())
    }
}
