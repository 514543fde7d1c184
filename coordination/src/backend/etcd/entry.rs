//! Entries: what is in a key's value, and what a key says of its entry.

use std::time::{Duration, UNIX_EPOCH};

use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};

use super::keys::{Keys, SHARED};
use crate::backend::{Blocker, Entry, EntryId, Mode, NewEntry};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// What an entry's value says. Other libraries write values of their own, or none.
#[derive(Serialize, Deserialize)]
struct Stored {
    member: String,
    since_ms: u64,
    /// The name in full, where the key has its hash only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Also of an entry that was entered as exclusive: its key keeps its name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    data: String,
}

/// What the values of entries and those of queues have in common.
#[derive(Deserialize)]
struct Named {
    name: Option<String>,
}

/// The value for an entry's key.
pub(super) fn to_value(entry: &NewEntry, since_ms: u64) -> Result<Vec<u8>> {
    let stored = Stored {
        member: entry.member.to_string(),
        since_ms,
        name: stored_name(&entry.place.queue),
        shared: entry.mode == Mode::Shared,
        data: entry.data.to_string(),
    };
    serde_json::to_vec(&stored).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "enter", "cannot write the entry").with_source(error)
    })
}

/// The name that goes into a value, where the key does not tell it.
pub(super) fn stored_name(queue: &QueueKey) -> Option<String> {
    queue.is_hashed().then(|| queue.name().to_owned())
}

/// The name in a value that was written by us for a hashed key.
pub(super) fn name_in(value: &[u8]) -> Option<String> {
    serde_json::from_slice::<Named>(value).ok()?.name
}

/// Two names with one hash must not share a lock (contract S8).
pub(super) fn check_name(queue: &QueueKey, kv: &KeyValue) -> Result<()> {
    if queue.is_hashed() && name_in(kv.value()).is_some_and(|name| name != queue.name()) {
        return Err(Error::new(ErrorKind::Collision, "enter", "another name has the same hash"));
    }
    Ok(())
}

/// The entry of a key; `None`: the key is not text, and none of ours.
pub(super) fn entry_of(kv: &KeyValue, keys: &Keys) -> Option<Entry> {
    Some(entry_in(keys.name(kv.key())?, kv.value(), seq_of(kv)))
}

/// The entry that this value tells of.
pub(super) fn entry_in(name: &str, value: &[u8], seq: u64) -> Entry {
    let stored: Option<Stored> = serde_json::from_slice(value).ok();
    let mode = mode_of(name, stored.as_ref());
    let since = stored.as_ref().map(|stored| Duration::from_millis(stored.since_ms));
    let (member, data) = stored.map(|stored| (stored.member, stored.data)).unwrap_or_default();
    Entry {
        id: EntryId::from_store(name),
        seq,
        member: member.into(),
        since: since.and_then(|since| UNIX_EPOCH.checked_add(since)),
        mode,
        data: data.into(),
    }
}

/// The entry of a key, if it keeps a later one of this mode waiting.
pub(super) fn blocker_of(kv: &KeyValue, keys: &Keys, later: Mode) -> Result<Option<Blocker>> {
    let entry = entry_of(kv, keys).ok_or_else(|| {
        let message = format!("a key under {} is not text", keys.prefix());
        Error::new(ErrorKind::Corrupt, "read", message)
    })?;
    Ok(entry.mode.blocks(later).then_some(Blocker { id: entry.id, seq: entry.seq }))
}

fn mode_of(name: &str, stored: Option<&Stored>) -> Mode {
    if name.starts_with(SHARED) || stored.is_some_and(|stored| stored.shared) {
        Mode::Shared
    } else {
        Mode::Exclusive
    }
}

/// An entry's number is the revision in which its key was created.
pub(super) fn seq_of(kv: &KeyValue) -> u64 {
    number(kv.create_revision())
}

/// A revision as the numbers that we give.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or_default()
}

pub(super) fn revision_of(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
