//! Entries, as they are read from keys and their values.

use super::keys::is_entry;
use super::kv::Pair;
use crate::backend::server::stored::{StoredEntry, check_name, mode_in};
use crate::backend::server::txn_kv::Keys;
use crate::backend::{Blocker, Entry, EntryId, Mode};
use crate::error::Result;
use crate::key::QueueKey;

/// The entry of a key; `None`: the key is no entry's, or no session has ever locked it.
///
/// The entry's number is the index of Consul's log at which the key was created. Each transaction has an index of its own, so no
/// two entries have the same number.
pub(super) fn entry_of(pair: &Pair, keys: &Keys) -> Option<Entry> {
    let name = name_of(pair, keys)?;
    let (seq, text) = (pair.create_index, pair.value());
    Some(StoredEntry::entry(name, seq, Mode::Exclusive, &text))
}

/// The name of the entry whose key this is; `None`: it is no entry's.
pub(super) fn name_of<'a>(pair: &'a Pair, keys: &Keys) -> Option<&'a str> {
    keys.name(&pair.key).filter(|name| is_entry(name) && counts(pair))
}

/// Whether a session has locked this key, or had locked it. A key that no session ever locked is no entry, and blocks nobody.
pub(super) fn counts(pair: &Pair) -> bool {
    pair.is_locked() || pair.is_left()
}

/// The newest entry with a number below `seq` that blocks an entry of mode `mode`.
pub(super) fn blocker_in(
    pairs: &[Pair],
    keys: &Keys,
    queue: &QueueKey,
    (seq, mode): (u64, Mode),
) -> Result<Option<Blocker>> {
    let mut before: Vec<_> = pairs
        .iter()
        .filter(|pair| pair.create_index < seq)
        .filter_map(|pair| Some((name_of(pair, keys)?, pair)))
        .collect();
    before.sort_unstable_by_key(|(_, pair)| std::cmp::Reverse(pair.create_index));
    for (name, pair) in before {
        check_pair(queue, pair)?;
        // Every entry blocks an exclusive one: its text need not be read.
        if mode == Mode::Exclusive || mode_in(Mode::Exclusive, &pair.value()).blocks(mode) {
            return Ok(Some(Blocker { id: EntryId::from_store(name), seq: pair.create_index }));
        }
    }
    Ok(None)
}

/// Refuses the entry or value of another queue, whose name has the same hash.
pub(super) fn check_pair(queue: &QueueKey, pair: &Pair) -> Result<()> {
    if queue.is_hashed() { check_name(queue, &pair.value()) } else { Ok(()) }
}
