//! The types that the traits of a store use: sessions, entries, queues and values.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use rand::RngExt;

use crate::env;
use crate::key::QueueKey;

/// A session's id at the store, which the client chooses: 63 random bits, never zero.
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

/// An entry's id, which is unique within its queue.
///
/// Ids of our own entries are made by the client, as `<session>-<128 random bits>`, so that the client can find the entry again if
/// the answer to `enter` was lost. In a listing of etcd or Consul, an entry has the last part of its key as its id. On etcd and
/// ZooKeeper, a queue may also have entries of other libraries, whose ids are the names that those libraries chose.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EntryId(Arc<str>);

impl Hash for EntryId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The last 16 characters are random enough for a hash, and a short hash is fast: every acquire of a file lock computes it.
        self.0.as_bytes().last_chunk::<16>().hash(state);
    }
}

impl EntryId {
    pub(crate) fn random(session: SessionId) -> Self {
        // Written byte by byte, because `format!` is slower, and every acquire of a file lock makes an id.
        let mut text = [b'-'; 16 + 1 + 32];
        if let Some((id, rest)) = text.split_at_mut_checked(16) {
            HEXLOWER.encode_mut(&session.0.to_be_bytes(), id);
            HEXLOWER.encode_mut(&env::rng().random::<u128>().to_be_bytes(), &mut rest[1..]);
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Whether this id begins with the session's id, as the ids of the session's entries do. In a listing of etcd, the ids of
    /// shared entries begin with `r`; for these this returns false.
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

/// A callback: `renew` calls it for each held entry that is gone.
pub(crate) type Gone<'a> = dyn Fn(&EntryId) + Send + Sync + 'a;

/// A session to open.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    /// The member id, unique among the live sessions of the namespace.
    pub(crate) member: Arc<str>,
    /// The lease that the client asks for; the store may grant another.
    #[cfg_attr(
        not(any(feature = "_network", all(coordination_internals, feature = "memory"))),
        expect(dead_code, reason = "for stores with leases")
    )]
    pub(crate) ttl: Duration,
}

/// Text that a recipe stores with an entry, or as a queue's value. Stores do not interpret it.
pub(crate) type Data = Arc<str>;

/// Whether an entry is compatible with other entries of its queue, so that they can hold the lock at the same time.
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
    /// The member id. Commands that list entries show it to people.
    pub(crate) member: Arc<str>,
    /// What the caller says of the entry, for people; see [`Lock::label`](crate::Lock::label). It never changes.
    pub(crate) label: Option<Arc<str>>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
    pub(crate) room: Room,
}

/// How many updates an entry will need until its turn has come, and how large they are. A store whose disk may fill up reserves
/// space for these updates when the entry is entered, so that a full disk does not keep the entry from its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many updates will be needed.
    pub(crate) updates: usize,
    /// The largest size of the data of one such update, in bytes.
    pub(crate) bytes: usize,
}

impl Room {
    /// What still has to be reserved after one of these updates was made.
    pub(crate) fn after_update(self) -> Self {
        Self { updates: self.updates.saturating_sub(1), ..self }
    }
}

/// An entry's number, and which other entry blocks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The sequence number of the entry, which is its fencing token.
    pub(crate) seq: u64,
    /// The newest live entry before this one that is not compatible with it by [`Mode`]. `None`: no entry blocks this one, so its
    /// turn has come.
    pub(crate) blocker: Option<Blocker>,
}

/// An entry that blocks another entry, which has to wait until the blocker is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) id: EntryId,
    /// The blocker's number, which distinguishes the blocker from a later entry with the same id: other libraries use an id more
    /// than once.
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
    /// The member id; empty if the entry was made by another library.
    pub(crate) member: Arc<str>,
    /// When the entry was entered, by the wall clock of the client that entered it. This time is only shown to people, and nothing
    /// is decided by it.
    pub(crate) since: Option<SystemTime>,
    /// The label that the entry was entered with. This text is only shown to people.
    pub(crate) label: Option<Arc<str>>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
}

impl Entry {
    /// The label as it is told to users: empty if there is none.
    pub(crate) fn label(&self) -> String {
        self.label.as_deref().unwrap_or_default().to_owned()
    }
}

/// A queue as it was at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// A number that identifies the state: two listings that differ have different revisions. The caller passes it to
    /// [`Watching::changed`](super::Watching::changed), which waits until the queue has another revision.
    pub(crate) revision: u64,
    /// The live entries, in the order of their numbers.
    pub(crate) entries: Vec<Entry>,
    pub(crate) value: Option<Value>,
    /// The reading of the store's own clock at that moment; `None`: the store has no clock that can be read.
    pub(crate) clock: Option<Clock>,
    /// Who gave the listing; `None`: on this store nobody [confirms](super::Entries::confirm) what another one has answered.
    pub(crate) source: Option<Source>,
}

/// Who gave an answer: the connection on which it came, and the record that the server had when it answered. A grant that replicas
/// have to confirm counts only if its confirmation has the same source. Another server, or the same one with other data, may know of
/// an entry that blocks ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) epoch: u64,
    /// The number of the server's record among those that were told on this connection.
    pub(crate) record: u64,
    /// Whether replicas have to confirm what this server grants (`min-replicas-to-write`).
    pub(crate) needs_replicas: bool,
}

impl Listing {
    /// The entry with this number.
    pub(crate) fn entry(&self, seq: u64) -> Option<&Entry> {
        let index = self.entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        self.entries.get(index)
    }

    /// The entries whose numbers are smaller than `seq`.
    pub(crate) fn before(&self, seq: u64) -> &[Entry] {
        let end = self.entries.partition_point(|entry| entry.seq < seq);
        self.entries.get(..end).unwrap_or_default()
    }
}

/// A queue's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// Larger than the version of every earlier value of this queue, also of values that were removed.
    pub(crate) version: u64,
    pub(crate) data: Data,
    /// The write that made this value; `None` on stores that do not keep this.
    pub(crate) writer: Option<Writer>,
}

/// The write that made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) id: u64,
    /// The version of the value that this write replaced.
    pub(crate) replaced: u64,
}

/// A reading of a store's clock. All clients read the same clock, which runs steadily and is never set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Changes when the clock starts again from zero, for instance because the host was booted again. Readings of different epochs
    /// cannot be compared.
    pub(crate) epoch: u64,
    pub(crate) now: Duration,
}

/// A compare-and-set of a queue's value.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) queue: QueueKey,
    /// Random, chosen by the client. By this id the store recognises a repeated call, and distinguishes it from another client's
    /// write.
    pub(crate) id: u64,
    /// The version that the value must have, or else nothing is written; `None`: the queue must have no value.
    pub(crate) expected: Option<u64>,
    /// The new value; `None` removes the value.
    pub(crate) data: Option<Data>,
    /// Whether the write has a further condition: the queue must have no live entry, or else nothing is written.
    pub(crate) if_empty: bool,
    /// The [source](Listing::source) of the listing by which the write was decided, if it depends on the queue's entries. A server that has
    /// taken over may have the expected version and lack some of these entries. So if another server would write by now, or the same one
    /// with other data, nothing is written. `None`: whoever is asked writes.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "one store asks"))]
    pub(crate) seen: Option<Source>,
    /// Changes of records (further texts of the queue, each with a name). They are written together with the value, or nothing is
    /// written. At most [`MOST_BESIDE`], all of different names. Empty if the value is removed.
    pub(crate) beside: Vec<Beside>,
    /// Whether the write is to be refused while the store's memory is full. If not, it leads to there being less, or is what others
    /// need that do.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "one store asks"))]
    pub(crate) needs_room: bool,
    /// Dropped when no call of this write will be made any more, so that stores may forget what they know of its calls.
    #[cfg_attr(
        not(any(feature = "consul", feature = "etcd", feature = "zookeeper")),
        allow(dead_code, reason = "some stores ask")
    )]
    pub(crate) pending: Arc<()>,
}

/// The largest number of records that one call may write or read. Every store can do that many in one transaction.
pub(crate) const MOST_BESIDE: usize = 56;

/// A change of one record of a queue, to be made together with a write of the queue's value.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// The record's name: letters, digits and `-`.
    pub(crate) name: Arc<str>,
    /// The record's new text, which is never empty; `None` removes the record. Some stores cannot distinguish an empty text from a
    /// record that does not exist.
    pub(crate) data: Option<Data>,
    /// Whether this change creates the record: at the expected version of the value, the record does not exist. ZooKeeper needs
    /// this, because it has different operations to create a node and to change one.
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code, reason = "one store asks"))]
    pub(crate) is_new: bool,
}

impl Write {
    pub(crate) fn new(queue: &QueueKey, expected: Option<u64>, data: Option<Data>) -> Self {
        let (queue, id) = (queue.clone(), env::rng().random());
        let (beside, pending) = (Vec::new(), Arc::default());
        let (if_empty, seen) = (false, None);
        Self { queue, id, expected, data, if_empty, seen, beside, needs_room: true, pending }
    }
}
