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

/// The name of the entry whose key this is; `None`: the key is not an entry's.
pub(super) fn name_of<'a>(pair: &'a Pair, keys: &Keys) -> Option<&'a str> {
    keys.name(&pair.key).filter(|name| is_entry(name) && counts(pair))
}

/// Whether the key counts as an entry: it is locked by a session, or was locked by a session that is over. A key that no session
/// has ever locked is no entry, whatever its name is, and blocks nobody.
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
        // An exclusive entry is blocked by every earlier entry. Whether an earlier entry is exclusive or shared does not matter,
        // so its text need not be read.
        if mode == Mode::Exclusive || mode_in(Mode::Exclusive, &pair.value()).blocks(mode) {
            return Ok(Some(Blocker { id: EntryId::from_store(name), seq: pair.create_index }));
        }
    }
    Ok(None)
}

/// Fails if the key's text names another queue. Long queue names are hashed, and two names may have the same hash: then both
/// queues would use the same keys.
pub(super) fn check_pair(queue: &QueueKey, pair: &Pair) -> Result<()> {
    if queue.is_hashed() { check_name(queue, &pair.value()) } else { Ok(()) }
}
