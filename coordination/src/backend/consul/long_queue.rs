//! What this process knows of long queues, so that it need not read them in full for each entry that comes or goes.
//!
//! When an entry is entered, all entries before it exist already. So to find the entry that blocks it, its *blocker*, it is
//! enough to check which of the earlier entries that this process knows still exist. And if this process already has an exclusive
//! entry in the queue, its next entry can wait for that earlier entry: the queue is read only when the earlier entry is gone.

use std::collections::BTreeMap;

use super::entry::name_of;
use super::kv::Pair;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::txn_kv::Keys;
use crate::backend::{Blocker, EntryId, Mode};
use crate::key::QueueKey;

/// A queue with at least this many entries is a long one.
const LONG: usize = 32;
/// If more entries than this may be before an entry, the whole queue is read instead of the keys of these entries.
const MOST_BEFORE: usize = 120;

#[derive(Default)]
pub(super) struct LongQueues(BoundedCache<QueueKey, LongQueue>);

#[derive(Default)]
struct LongQueue {
    /// `alive` has all entries with a smaller number than this that may still exist.
    complete: u64,
    /// The entries that this process knows and that may still exist, by their numbers.
    alive: BTreeMap<u64, EntryId>,
    /// The entry that this process entered last, if that entry is exclusive. `None`: that entry is shared, or was downgraded to
    /// shared since, or this process has entered none.
    last: Option<Blocker>,
}

impl LongQueues {
    /// Notes the entries of a queue that was read in full. Of a queue with fewer entries than [`LONG`], nothing is remembered.
    pub(super) fn read(&self, queue: &QueueKey, keys: &Keys, pairs: &[Pair]) {
        let named =
            |pair: &Pair| Some((pair.create_index, EntryId::from_store(name_of(pair, keys)?)));
        self.0.update(queue.clone(), |known| {
            if pairs.len() < LONG {
                *known = None;
                return;
            }
            let alive: BTreeMap<_, _> = pairs.iter().filter_map(named).collect();
            let Some(newest) = alive.keys().next_back().copied() else { return };
            let long_queue = known.get_or_insert_default();
            // Some entries of this process may have been entered after this read was made, and their answers may have come before
            // the answer to the read. They are known already, and are kept.
            let later = long_queue.alive.split_off(&(newest + 1));
            (long_queue.complete, long_queue.alive) = (newest, alive);
            long_queue.alive.extend(later);
        });
    }

    /// Notes that an entry of this process was entered.
    pub(super) fn entered(&self, queue: &QueueKey, (name, seq): (&str, u64), mode: Mode) {
        self.change(queue, |long_queue| {
            let id = EntryId::from_store(name);
            long_queue.alive.insert(seq, id.clone());
            long_queue.last = (mode == Mode::Exclusive).then_some(Blocker { id, seq });
        });
    }

    /// Notes that an entry of this process may be shared from now on, because its downgrade is about to be sent. The next entry of
    /// this process must not take the downgraded entry for its blocker without reading the queue.
    pub(super) fn downgraded(&self, queue: &QueueKey, seq: u64) {
        self.change(queue, |long_queue| {
            long_queue.last.take_if(|last| last.seq == seq);
        });
    }

    /// Notes that entries are gone. The entries are given by their numbers, because a later entry may have the same key by now.
    pub(super) fn gone(&self, queue: &QueueKey, seqs: impl IntoIterator<Item = u64>) {
        self.change(queue, |long_queue| {
            for seq in seqs {
                long_queue.alive.remove(&seq);
            }
        });
    }

    /// The exclusive entry that this process entered last, if the queue is long and the entry is not known to be gone.
    pub(super) fn last(&self, queue: &QueueKey) -> Option<Blocker> {
        let last = |long_queue: &LongQueue| {
            long_queue.last.clone().filter(|last| long_queue.alive.contains_key(&last.seq))
        };
        self.0.get(queue, last)?
    }

    /// The entries with a smaller number than `seq` that may still exist, the newest first. `None`: this process does not know
    /// them all, or there are more than [`MOST_BEFORE`]; then the queue has to be read.
    pub(super) fn before(&self, queue: &QueueKey, seq: u64) -> Option<Vec<Blocker>> {
        let blocker = |(seq, id): (&u64, &EntryId)| Blocker { id: id.clone(), seq: *seq };
        let before = |long_queue: &LongQueue| {
            let before = long_queue.alive.range(..seq).rev().map(blocker);
            (long_queue.complete >= seq).then(|| before.take(MOST_BEFORE + 1).collect::<Vec<_>>())
        };
        self.0.get(queue, before)?.filter(|before| before.len() <= MOST_BEFORE)
    }

    fn change(&self, queue: &QueueKey, change: impl FnOnce(&mut LongQueue)) {
        self.0.update(queue.clone(), |known| known.as_mut().map(change));
    }
}
