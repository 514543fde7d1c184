//! The texts, in JSON, that are stored for entries and values on stores for which an entry or a value is just a string of bytes.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::backend::{Data, Entry, EntryId, Mode, NewEntry, Value, Write, Writer};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, QueueKey};

/// The text of an entry of this library. An entry that another library has put into the same queue has another text, or none.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredEntry {
    member: String,
    since_ms: u64,
    /// The queue's full name, if the key has only a hash of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    data: String,
}

/// The text of a queue's value.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredValue {
    /// The id of the write that made this value.
    pub(crate) id: u64,
    pub(crate) data: String,
    /// The version that the value had before this write; `None`: there was no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced: Option<u64>,
    /// The queue's full name, if the key has only a hash of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// The part that the texts of entries and of values have in common. It is all that is needed to find the name of their queue.
#[derive(Deserialize)]
struct Named {
    name: Option<String>,
}

impl StoredEntry {
    /// `since_ms`: when the entry was entered, in milliseconds of UNIX time.
    pub(crate) fn new(entry: &NewEntry, since_ms: u64) -> Self {
        Self {
            member: entry.member.to_string(),
            since_ms,
            name: stored_name(&entry.entry_ref.queue),
            label: entry.label.as_deref().map(str::to_owned),
            shared: entry.mode == Mode::Shared,
            data: entry.data.to_string(),
        }
    }

    /// Parses the text of an entry. `None`: the text is not one of ours, but another library's.
    fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "enter", "cannot write the entry").with_source(error)
        })
    }

    /// The entry with this text. If another library wrote the text, nothing is known from it, so the entry has only an id, a number
    /// and a mode. `named`: the mode that the entry's key or row says.
    pub(crate) fn entry(id: impl Into<Arc<str>>, seq: u64, named: Mode, text: &[u8]) -> Entry {
        let stored = Self::read(text);
        let mode = mode_of(named, stored.as_ref());
        let since_ms = stored.as_ref().map(|stored| Duration::from_millis(stored.since_ms));
        let since = since_ms.and_then(|passed| UNIX_EPOCH.checked_add(passed));
        let stored = stored.map(|stored| (stored.member, stored.label, stored.data));
        let (member, label, data) = stored.unwrap_or_default();
        let (id, label) = (EntryId::from_store(id), label.map(Arc::from));
        Entry { id, seq, member: member.into(), since, label, mode, data: data.into() }
    }
}

/// The text of a record, from the bytes that the store has. Bytes that are not text, because somebody has changed them, become U+FFFD: several
/// records are read at once, and whoever reads them has to find out which one is damaged, and what of it still can be read.
pub(crate) fn data_of(bytes: Vec<u8>) -> Data {
    String::from_utf8_lossy(&bytes).into()
}

/// The mode of an entry with this text, whose key says that the entry was entered with the mode `named`.
pub(crate) fn mode_in(named: Mode, text: &[u8]) -> Mode {
    mode_of(named, StoredEntry::read(text).as_ref())
}

/// The mode of an entry whose key says `named`. An entry that was downgraded to shared keeps its key, which still says that it is
/// exclusive; its text says that it is shared.
fn mode_of(named: Mode, stored: Option<&StoredEntry>) -> Mode {
    let is_shared = stored.is_some_and(|stored| stored.shared);
    if is_shared { Mode::Shared } else { named }
}

impl StoredValue {
    pub(crate) fn new(queue: &QueueKey, id: u64, data: &str) -> Self {
        Self { id, data: data.to_owned(), replaced: None, name: stored_name(queue) }
    }

    /// The text that this write stores if the new value is `data`.
    pub(crate) fn by(write: &Write, data: &str) -> Self {
        Self { replaced: write.expected, ..Self::new(&write.queue, write.id, data) }
    }

    /// The value of this text, with its version.
    pub(crate) fn into_value(self, version: u64) -> Value {
        let writer = self.replaced.map(|replaced| Writer { id: self.id, replaced });
        Value { version, data: self.data.into(), writer }
    }

    pub(crate) fn read(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).map_err(|error| {
            let message = "the value is not what this library writes there";
            Error::new(ErrorKind::Corrupt, "read", message).with_source(error)
        })
    }

    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "write", "cannot write the value").with_source(error)
        })
    }
}

/// The queue's full name, for the text of an entry or value, if the key has only a hash of the name.
pub(crate) fn stored_name(queue: &QueueKey) -> Option<String> {
    queue.is_hashed().then(|| queue.name().to_owned())
}

/// The full name in a text that we wrote under a hashed key.
pub(crate) fn name_in(text: &[u8]) -> Option<String> {
    serde_json::from_slice::<Named>(text).ok()?.name
}

/// The name of the queue whose keys have this segment, which is the encoded name, or a hash of a long name. A hash does not tell
/// the name, so then the name is taken from `text`, the text of an entry or of the value of that queue. `None`: the segment is not
/// one of our queues, or `text` does not have the name.
///
/// The name is encoded again and compared with the segment, because another program may have written keys with other segments.
pub(crate) fn queue_name(segment: &str, text: &[u8]) -> Option<String> {
    let name = if key::is_hashed(segment) { name_in(text) } else { key::unescape(segment) }?;
    (!name.is_empty() && key::encode(&name) == segment).then_some(name)
}

/// Fails if this text was written for another queue whose name has the same hash: two names must not share a lock (S8).
pub(crate) fn check_name(queue: &QueueKey, text: &[u8]) -> Result<()> {
    if queue.is_hashed() && name_in(text).is_some_and(|name| name != queue.name()) {
        return Err(Error::new(ErrorKind::Collision, "enter", "another name has the same hash"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{EntryRef, Room, SessionId};

    /// Versions that know of no labels read what has one, and what they have written is read.
    #[test]
    fn an_entry_without_a_label_has_the_text_that_it_always_had() {
        let session = SessionId::random();
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let entry_ref = EntryRef { queue, id: EntryId::random(session) };
        let text = |label: Option<&str>| {
            let new = NewEntry {
                entry_ref: entry_ref.clone(),
                session,
                member: "host-1".into(),
                label: label.map(Arc::from),
                mode: Mode::Shared,
                data: "{}".into(),
                room: Room::default(),
            };
            StoredEntry::new(&new, 5).to_bytes().expect("plain text")
        };
        let plain = br#"{"member":"host-1","since_ms":5,"shared":true,"data":"{}"}"#;
        assert_eq!(text(None), plain);
        let read = |text: &[u8]| StoredEntry::entry("a", 7, Mode::Exclusive, text);
        assert_eq!(read(plain).label, None);
        let labelled = read(&text(Some("nightly \"x\"")));
        assert_eq!(labelled.label.as_deref(), Some("nightly \"x\""));
        assert_eq!(Entry { label: None, ..labelled }, read(plain));
    }

    #[test]
    fn of_a_record_that_is_not_text_the_rest_is_read() {
        assert_eq!(&*data_of(b"{\"body\":\"QU\xffJD\"}".to_vec()), "{\"body\":\"QU\u{fffd}JD\"}");
    }

    #[test]
    fn a_segment_tells_its_queue_if_it_is_that_of_one() {
        let long = "é/".repeat(100);
        let text =
            serde_json::json!({ "member": "host-1", "since_ms": 1, "name": long }).to_string();
        let hashed = key::encode(&long);
        assert_eq!(queue_name("a%2Fb", b"").as_deref(), Some("a/b"));
        assert_eq!(queue_name(&hashed, text.as_bytes()), Some(long));
        assert_eq!(queue_name(&hashed, b"{{{"), None);
        let of_another = key::encode(&"x".repeat(201));
        for segment in [&of_another, "", "a.b", "a%2fb", "%FF", "h~"] {
            assert_eq!(queue_name(segment, text.as_bytes()), None, "{segment}");
        }
    }
}
