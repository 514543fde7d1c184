//! What is known of long queues, so that they need not be read in full for each entry that comes or goes.
//!
//! All entries that stand before another one were there when that came: so a look for that one only has to find out which of
//! them are still there. And an entry that comes to a queue in which this process has one already may wait for that, and have
//! the queue looked at when that is gone.

use std::collections::BTreeMap;

use super::entry::name_of;
use super::kv::Pair;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::txn_kv::Keys;
use crate::backend::{Blocker, EntryId, Mode};
use crate::key::QueueKey;

/// From this length on a queue is a long one.
const LONG: usize = 32;
/// If more than so many stand before an entry the queue is read in full.
const MOST_BEFORE: usize = 120;

#[derive(Default)]
pub(super) struct LongQueues(BoundedCache<QueueKey, LongQueue>);

#[derive(Default)]
struct LongQueue {
    /// All entries with a smaller number than this that may still live are in `alive`.
    complete: u64,
    /// By number, the entries that are not known to be gone.
    alive: BTreeMap<u64, EntryId>,
    /// The exclusive one that this process entered last.
    last: Option<Blocker>,
}

impl LongQueues {
    /// Notes what a queue had when it was read in full.
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
            // Entries of ours that came after this read, and whose answers were faster than its own.
            let later = long_queue.alive.split_off(&(newest + 1));
            (long_queue.complete, long_queue.alive) = (newest, alive);
            long_queue.alive.extend(later);
        });
    }

    /// Notes that an entry of ours was entered.
    pub(super) fn entered(&self, queue: &QueueKey, (name, seq): (&str, u64), mode: Mode) {
        self.change(queue, |long_queue| {
            let id = EntryId::from_store(name);
            long_queue.alive.insert(seq, id.clone());
            long_queue.last = (mode == Mode::Exclusive).then_some(Blocker { id, seq });
        });
    }

    /// Notes that an entry of ours is shared from now on, or may be: it blocks no shared one any longer.
    pub(super) fn downgraded(&self, queue: &QueueKey, seq: u64) {
        self.change(queue, |long_queue| {
            long_queue.last.take_if(|last| last.seq == seq);
        });
    }

    /// Notes that entries are gone. Their names may be those of later ones by now.
    pub(super) fn gone(&self, queue: &QueueKey, seqs: impl IntoIterator<Item = u64>) {
        self.change(queue, |long_queue| {
            for seq in seqs {
                long_queue.alive.remove(&seq);
            }
        });
    }

    /// The exclusive entry that this process entered last, if it is in a long queue and was not left.
    pub(super) fn last(&self, queue: &QueueKey) -> Option<Blocker> {
        let last = |long_queue: &LongQueue| {
            long_queue.last.clone().filter(|last| long_queue.alive.contains_key(&last.seq))
        };
        self.0.get(queue, last)?
    }

    /// The entries that may stand before this number, the newest first; `None`: that is not known.
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
