//! The types that the traits of a store use: sessions, entries, queues and values.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use rand::RngExt;

use crate::env;
use crate::key::QueueKey;

/// A session's name at the store: 63 random bits, never zero, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(u64);

impl SessionId {
    pub(crate) fn random() -> Self {
        Self(env::rng().random_range(1..=i64::MAX as u64))
    }

    #[cfg(feature = "file")]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }

    #[cfg(feature = "etcd")]
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An entry's name within its queue.
///
/// The id of our entries is `<session>-<128 random bits>`, made by the client, so that the client can ask again after a lost
/// answer. But in a listing of etcd or Consul, an entry's id is the last part of its key. On etcd and ZooKeeper, entries of other
/// libraries may be in the queue, under names that those libraries make.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EntryId(Arc<str>);

impl Hash for EntryId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The last 16 characters are random enough, and hashing is on the path of every file lock.
        self.0.as_bytes().last_chunk::<16>().hash(state);
    }
}

impl EntryId {
    pub(crate) fn random(session: SessionId) -> Self {
        // Written by hand, as formatting is slower, and this is on the path of every file lock.
        let mut text = [b'-'; 16 + 1 + 32];
        if let Some((id, rest)) = text.split_at_mut_checked(16) {
            HEXLOWER.encode_mut(&session.0.to_be_bytes(), id);
            HEXLOWER.encode_mut(&env::rng().random::<u128>().to_be_bytes(), &mut rest[1..]);
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Whether this is an entry of the session: an entry's id begins with the session's. This is not so for entries that were
    /// entered as shared on etcd, whose ids in a listing begin with `r`.
    pub(crate) fn is_of(&self, session: SessionId) -> bool {
        let owner = self.0.split('-').next().map(|owner| u64::from_str_radix(owner, 16));
        owner == Some(Ok(session.0))
    }

    #[cfg(any(feature = "_network", feature = "file"))]
    pub(crate) fn from_store(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    #[cfg(feature = "file")]
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    #[cfg(any(feature = "_network", feature = "file"))]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An entry, by its queue and its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryRef {
    pub(crate) queue: QueueKey,
    pub(crate) id: EntryId,
}

/// Called for each held entry that is gone.
pub(crate) type Gone<'a> = dyn Fn(&EntryId) + Send + Sync + 'a;

/// A session to open.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    /// The member id, unique among the live sessions of the namespace.
    pub(crate) member: Arc<str>,
    /// The lease that is asked for; the store may grant another.
    #[cfg_attr(
        not(any(feature = "_network", all(coordination_internals, feature = "memory"))),
        expect(dead_code, reason = "for stores with leases")
    )]
    pub(crate) ttl: Duration,
}

/// Text that a recipe keeps with an entry, or as a queue's value. Stores do not interpret it.
pub(crate) type Data = Arc<str>;

/// Which other entries an entry is compatible with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// Compatible with no other entry: every entry before it blocks it.
    #[default]
    Exclusive,
    /// Compatible with other shared entries: only exclusive entries before it block it.
    Shared,
}

impl Mode {
    /// Whether an entry of this mode blocks an entry of mode `later` that comes after it.
    pub(crate) fn blocks(self, later: Self) -> bool {
        self == Self::Exclusive || later == Self::Exclusive
    }
}

/// An entry to append.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry {
    pub(crate) entry_ref: EntryRef,
    pub(crate) session: SessionId,
    /// The member id, which is shown to people with the entry.
    pub(crate) member: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
    pub(crate) room: Room,
}

/// The updates that an entry will need until its turn has come. A store whose disk may fill up reserves space for them when the
/// entry is entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// The number of these updates.
    pub(crate) updates: usize,
    /// The largest size of their data, in bytes.
    pub(crate) bytes: usize,
}

impl Room {
    /// The updates that will still be needed after one more was made.
    pub(crate) fn after_update(self) -> Self {
        Self { updates: self.updates.saturating_sub(1), ..self }
    }
}

/// An entry's number, and what blocks the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The sequence number of the entry, which is its fencing token.
    pub(crate) seq: u64,
    /// The newest live entry before this one that is not compatible with it by [`Mode`]; `None`: there is none.
    pub(crate) blocker: Option<Blocker>,
}

/// An entry for which another one has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) id: EntryId,
    /// Distinguishes this entry from a later one with the same id: other libraries use ids again.
    pub(crate) seq: u64,
}

impl From<&Entry> for Blocker {
    fn from(entry: &Entry) -> Self {
        Self { id: entry.id.clone(), seq: entry.seq }
    }
}

/// An entry in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) seq: u64,
    /// The member id; empty for a contender of another library.
    pub(crate) member: Arc<str>,
    /// When the entry was entered, by its client's wall clock: shown to people, never used to decide.
    pub(crate) since: Option<SystemTime>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
}

/// A queue as it was at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// A number that differs whenever anything in the listing differs, to be passed to
    /// [`Watching::changed`](super::Watching::changed).
    pub(crate) revision: u64,
    /// The live entries, in order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) value: Option<Value>,
    /// The store's own clock at that moment; `None`: the store has no clock that can be read.
    pub(crate) clock: Option<Clock>,
}

impl Listing {
    /// The entry with this number.
    pub(crate) fn entry(&self, seq: u64) -> Option<&Entry> {
        let index = self.entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        self.entries.get(index)
    }

    /// The entries with smaller numbers.
    pub(crate) fn before(&self, seq: u64) -> &[Entry] {
        let end = self.entries.partition_point(|entry| entry.seq < seq);
        self.entries.get(..end).unwrap_or_default()
    }
}

/// A queue's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// Larger than the version of every earlier value of this queue, removed ones included.
    pub(crate) version: u64,
    pub(crate) data: Data,
    /// The write that made this value, on stores that remember it.
    pub(crate) writer: Option<Writer>,
}

/// A write that made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) id: u64,
    /// The version that it replaced.
    pub(crate) replaced: u64,
}

/// The reading of a store's clock, which is the same for all clients, steady, and never set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Changes when the clock starts anew: readings of different epochs cannot be compared.
    pub(crate) epoch: u64,
    pub(crate) now: Duration,
}

/// A compare-and-set of a queue's value.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) queue: QueueKey,
    /// Random, chosen by the client: distinguishes a repeated call from a write of another client.
    pub(crate) id: u64,
    /// The version that the value must have; `None`: there must be no value.
    pub(crate) expected: Option<u64>,
    /// The new value; `None` removes the value.
    pub(crate) data: Option<Data>,
    /// Whether the write is made only if the queue has no live entry.
    pub(crate) if_empty: bool,
    /// Records (further texts of the queue, each with a name) that are written together with the value, or not at all: at most
    /// [`MOST_BESIDE`], with different names. A removal has none.
    pub(crate) beside: Vec<Beside>,
}

/// The largest number of records that are written, or read, in one call: every store can do so many in one transaction.
pub(crate) const MOST_BESIDE: usize = 56;

/// A change of one of a queue's records, made together with a write of the value.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// The record's name: letters, digits and `-`.
    pub(crate) name: Arc<str>,
    /// The record's new text; `None` removes the record.
    pub(crate) data: Option<Data>,
    /// Whether the record does not exist yet, as of the expected version of the value. ZooKeeper has different operations to
    /// create and to change.
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code, reason = "one store asks"))]
    pub(crate) is_new: bool,
}

impl Write {
    pub(crate) fn new(queue: &QueueKey, expected: Option<u64>, data: Option<Data>) -> Self {
        let (queue, id) = (queue.clone(), env::rng().random());
        Self { queue, id, expected, data, if_empty: false, beside: Vec::new() }
    }
}
