//! Entries in the server's answers, and what this client remembers of its own.

use super::script::{Answer, corrupt};
use crate::backend::server::notifications::{Wait, mode_of};
use crate::backend::server::own_entries;
use crate::backend::server::stored::{StoredEntry, check_name};
use crate::backend::{Entry, Mode};
use crate::error::Result;
use crate::key::QueueKey;

/// Reads the next entry of a listing from an answer.
pub(super) fn entry_of(queue: &QueueKey, answer: &mut Answer) -> Result<Entry> {
    let (id, seq) = (answer.text()?, answer.natural()?);
    let mode = mode_of(&answer.text()?).ok_or_else(corrupt)?;
    let text = answer.bytes()?.unwrap_or_default();
    check_name(queue, &text)?;
    Ok(entry_in(id, seq, mode, &text))
}

/// The entry with this text.
pub(super) fn entry_in(id: String, seq: u64, mode: Mode, text: &[u8]) -> Entry {
    Entry { mode, ..StoredEntry::entry(id, seq, mode, text) }
}

/// Our own entries, each with what it waits for.
pub(super) type OwnEntries = own_entries::OwnEntries<Option<Wait>>;
