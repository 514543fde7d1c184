//! Entries: what the server says of one, and what is known here of our own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::script::{Answer, corrupt};
use super::watch::{Wait, is_shared};
use crate::backend::server::stored::{StoredEntry, check_name};
use crate::backend::{Entry, EntryId, Mode, SessionId};
use crate::error::Result;
use crate::key::QueueKey;
use crate::world::unix_micros;

/// The next entry of a listing.
pub(super) fn entry_of(queue: &QueueKey, answer: &mut Answer) -> Result<Entry> {
    let (id, seq) = (answer.text()?, answer.natural()?);
    let mode = mode_of(&answer.text()?)?;
    let text = answer.bytes()?.unwrap_or_default();
    check_name(queue, &text)?;
    Ok(entry_in(id, seq, mode, &text))
}

/// The entry that this text tells of.
pub(super) fn entry_in(id: String, seq: u64, mode: Mode, text: &[u8]) -> Entry {
    let stored = StoredEntry::read(text);
    let since = stored.as_ref().and_then(StoredEntry::since);
    let (member, data) = stored.map(|stored| (stored.member, stored.data)).unwrap_or_default();
    Entry {
        id: EntryId::from_store(id),
        seq,
        member: member.into(),
        since,
        mode,
        data: data.into(),
    }
}

fn mode_of(word: &str) -> Result<Mode> {
    match is_shared(word) {
        Some(true) => Ok(Mode::Shared),
        Some(false) => Ok(Mode::Exclusive),
        None => Err(corrupt()),
    }
}

/// Our own entries, from before they are entered until they have left.
#[derive(Default)]
pub(super) struct OwnEntries(Mutex<HashMap<EntryId, Own>>);

struct Own {
    since_ms: u64,
    waits_for: Option<Wait>,
}

impl OwnEntries {
    /// When it was first entered, in milliseconds of UNIX time: now, if that was never tried.
    pub(super) fn since_ms(&self, id: &EntryId) -> u64 {
        let mut entries = self.entries();
        let own = entries.entry(id.clone());
        own.or_insert_with(|| Own { since_ms: unix_micros() / 1000, waits_for: None }).since_ms
    }

    /// It waits for this now; answers what it waited for.
    pub(super) fn waits_for(&self, id: &EntryId, wait: Option<Wait>) -> Option<Wait> {
        let mut entries = self.entries();
        std::mem::replace(&mut entries.get_mut(id)?.waits_for, wait)
    }

    /// It has left; answers what it waited for.
    pub(super) fn left(&self, id: &EntryId) -> Option<Wait> {
        self.entries().remove(id)?.waits_for
    }

    /// The ids of those of this session.
    pub(super) fn of(&self, session: SessionId) -> Vec<EntryId> {
        self.entries().keys().filter(|id| id.is_of(session)).cloned().collect()
    }

    /// All of this session have left; answers what they waited for.
    pub(super) fn all_left(&self, session: SessionId) -> Vec<Wait> {
        let of_session = self.entries().extract_if(|id, _| id.is_of(session)).collect::<Vec<_>>();
        of_session.into_iter().filter_map(|(_, own)| own.waits_for).collect()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<EntryId, Own>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
