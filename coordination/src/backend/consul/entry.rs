//! Entries: what a key and its value say of one, and what is remembered of our own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::keys::Keys;
use super::kv::Pair;
use crate::backend::stored::{StoredEntry, check_name};
use crate::backend::{Blocker, Entry, EntryId, EntryRef, Mode, NewEntry, SessionId};
use crate::error::Result;
use crate::key::QueueKey;
use crate::time::unix_micros;

/// The entry of a key; `None`: the key is none of ours, or no session ever had it.
///
/// Its number is the index of Consul's log by which it was created: each transaction has one of its own.
pub(super) fn entry_of(pair: &Pair, keys: &Keys) -> Option<Entry> {
    let name = name_of(pair, keys)?;
    let stored = StoredEntry::read(&pair.value());
    let mode = stored.as_ref().map(StoredEntry::mode).unwrap_or_default();
    let since = stored.as_ref().and_then(StoredEntry::since);
    let (member, data) = stored.map(|stored| (stored.member, stored.data)).unwrap_or_default();
    let id = EntryId::from_store(name);
    let (member, data) = (member.into(), data.into());
    Some(Entry { id, seq: pair.create_index, member, since, mode, data })
}

/// The name of the entry whose key this is.
pub(super) fn name_of<'a>(pair: &'a Pair, keys: &Keys) -> Option<&'a str> {
    keys.entry_name(&pair.key).filter(|_| pair.is_locked() || pair.is_left())
}

/// The newest entry before this number that keeps a later one of this mode waiting.
pub(super) fn blocker_in(
    pairs: &[Pair],
    keys: &Keys,
    queue: &QueueKey,
    (seq, mode): (u64, Mode),
) -> Result<Option<Blocker>> {
    let is_entry = |pair: &&Pair| name_of(pair, keys).is_some();
    let mut before: Vec<_> =
        pairs.iter().filter(|pair| pair.create_index < seq).filter(is_entry).collect();
    before.sort_unstable_by_key(|pair| std::cmp::Reverse(pair.create_index));
    for pair in before {
        check_pair(queue, pair)?;
        // Any blocks an exclusive one: no need to look into it.
        let blocks = mode == Mode::Exclusive
            || entry_of(pair, keys).is_some_and(|entry| entry.mode.blocks(mode));
        if let (true, Some(name)) = (blocks, keys.entry_name(&pair.key)) {
            return Ok(Some(Blocker { id: EntryId::from_store(name), seq: pair.create_index }));
        }
    }
    Ok(None)
}

/// Refuses another name's entry or value.
pub(super) fn check_pair(queue: &QueueKey, pair: &Pair) -> Result<()> {
    if queue.is_hashed() { check_name(queue, &pair.value()) } else { Ok(()) }
}

/// What is remembered of the entries that were entered here, until they are left.
#[derive(Default)]
pub(super) struct Entries(Mutex<HashMap<EntryId, Own>>);

/// An entry of ours.
#[derive(Clone, Copy)]
pub(super) struct Own {
    session: SessionId,
    pub(super) mode: Mode,
    pub(super) since_ms: u64,
    /// How many calls that enter it were sent and not answered.
    unanswered: u32,
    /// The index of its last update, as far as is known.
    pub(super) modified: Option<u64>,
    /// How many updates were sent: no two of them are the same, see [`numbered`](super::kv::Operation::numbered).
    pub(super) updates: u64,
}

impl Entries {
    /// A call that enters it is being sent.
    pub(super) fn sent(&self, entry: &NewEntry) -> Own {
        let mut entries = self.entries();
        let own = entries.entry(entry.place.id.clone()).or_insert_with(|| Own {
            session: entry.session,
            mode: entry.mode,
            since_ms: unix_micros() / 1000,
            unanswered: 0,
            modified: None,
            updates: 0,
        });
        own.unanswered += 1;
        *own
    }

    /// That call was answered: it is not under way any longer.
    pub(super) fn answered(&self, entry: &EntryRef) {
        self.change(entry, |own| own.unanswered = own.unanswered.saturating_sub(1));
    }

    /// Whether a call that enters it may still be on its way.
    pub(super) fn is_in_doubt(&self, entry: &EntryRef) -> bool {
        self.entries().get(&entry.id).is_some_and(|own| own.unanswered > 0)
    }

    pub(super) fn session(&self, entry: &EntryRef) -> Option<SessionId> {
        self.entries().get(&entry.id).map(|own| own.session)
    }

    pub(super) fn own(&self, entry: &EntryRef) -> Option<Own> {
        self.entries().get(&entry.id).copied()
    }

    pub(super) fn change(&self, entry: &EntryRef, change: impl FnOnce(&mut Own)) {
        if let Some(own) = self.entries().get_mut(&entry.id) {
            change(own);
        }
    }

    /// It is known to be gone.
    pub(super) fn forget(&self, entry: &EntryRef) {
        self.entries().remove(&entry.id);
    }

    /// The session is over, and its entries with it.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.entries().retain(|_, own| own.session != session);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<EntryId, Own>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
