//! Reads entries from keys and their values.

use etcd_client::KeyValue;

use super::keys::SHARED;
use crate::backend::server::stored::StoredEntry;
use crate::backend::server::txn_kv::Keys;
use crate::backend::{Blocker, Entry, Mode, SessionId};
use crate::error::{Error, ErrorKind, Result};

/// The entry of a key; `None`: the key is not valid UTF-8, so none of our programs has written it.
pub(super) fn entry_of(kv: &KeyValue, keys: &Keys) -> Option<Entry> {
    Some(entry_in(keys.name(kv.key_str().ok()?)?, kv.value(), seq_of(kv)))
}

/// The entry whose key has this name and this value. The entry is shared if the name or the value says so.
pub(super) fn entry_in(name: &str, value: &[u8], seq: u64) -> Entry {
    let named = if name.starts_with(SHARED) { Mode::Shared } else { Mode::Exclusive };
    StoredEntry::entry(name, seq, named, value)
}

/// The entry of a key, if that entry blocks a later entry of mode `later`.
pub(super) fn blocker_of(kv: &KeyValue, keys: &Keys, later: Mode) -> Result<Option<Blocker>> {
    let entry = entry_of(kv, keys).ok_or_else(|| {
        let message = format!("a key under {} is not text", keys.prefix());
        Error::new(ErrorKind::Corrupt, "read", message)
    })?;
    Ok(entry.mode.blocks(later).then_some(Blocker::from(&entry)))
}

/// An entry's number is the revision in which its key was created.
pub(super) fn seq_of(kv: &KeyValue) -> u64 {
    number(kv.create_revision())
}

/// A revision as the unsigned number that the traits use.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or_default()
}

pub(super) fn revision_of(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The id of the session's lease at etcd. Session ids have 63 bits, so that they fit into an `i64`.
pub(super) fn lease_of(session: SessionId) -> i64 {
    session.value() as i64
}
