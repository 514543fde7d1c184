//! Reads entries from the server's answers; and the type for what this client remembers of its own entries.

use super::script::{Answer, corrupt};
use crate::backend::server::notifications::{Expected, mode_of};
use crate::backend::server::own_entries;
use crate::backend::server::stored::{StoredEntry, check_name};
use crate::backend::{Entry, Mode};
use crate::error::Result;
use crate::key::QueueKey;

/// Reads the next entry from the answer of `read.lua`, which lists a queue. Fails if the entry belongs to another name with the
/// same hash.
pub(super) fn entry_of(queue: &QueueKey, answer: &mut Answer) -> Result<Entry> {
    let (id, seq) = (answer.text()?, answer.natural()?);
    let mode = mode_of(&answer.text()?).ok_or_else(corrupt)?;
    let text = answer.bytes()?.unwrap_or_default();
    check_name(queue, &text)?;
    Ok(entry_in(id, seq, mode, &text))
}

/// Makes an entry from its parts. `text` is the JSON that the server has for it; `mode` replaces the mode in the text, because on
/// Redis the entry's sorted set says which mode it has now.
pub(super) fn entry_in(id: String, seq: u64, mode: Mode, text: &[u8]) -> Entry {
    Entry { mode, ..StoredEntry::entry(id, seq, mode, text) }
}

/// Our own entries, each with the entry that blocks it and for whose end it waits; `None`: nothing is known to block it.
pub(super) type OwnEntries = own_entries::OwnEntries<Option<Expected>>;
