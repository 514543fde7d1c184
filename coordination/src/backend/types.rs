//! What the traits of a store speak of: sessions, entries, queues and values.

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
/// Ours are `<session>-<128 random bits>`, made by the client so that a lost answer can be asked
/// for again; on an etcd queue a contender of another library may stand beside them, under a name of
/// its own making.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EntryId(Arc<str>);

impl Hash for EntryId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The end is random enough, and this is on the path of every file lock.
        self.0.as_bytes().last_chunk::<16>().hash(state);
    }
}

impl EntryId {
    pub(crate) fn random(session: SessionId) -> Self {
        // By hand, not by formatting: this is on the path of every file lock.
        let mut text = [b'-'; 16 + 1 + 32];
        if let Some((id, rest)) = text.split_at_mut_checked(16) {
            HEXLOWER.encode_mut(&session.0.to_be_bytes(), id);
            HEXLOWER.encode_mut(&env::rng().random::<u128>().to_be_bytes(), &mut rest[1..]);
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Whether it is an entry of this session: on every store its name begins with that.
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

/// Which entry of which queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryRef {
    pub(crate) queue: QueueKey,
    pub(crate) id: EntryId,
}

/// Is told of held entries that are gone.
pub(crate) type Gone<'a> = dyn Fn(&EntryId) + Send + Sync + 'a;

/// A session to open.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) id: SessionId,
    /// Unique among the live sessions of the namespace.
    pub(crate) member: Arc<str>,
    /// The lease asked for; the store may grant another.
    #[cfg_attr(
        not(any(feature = "_network", all(coordination_internals, feature = "memory"))),
        expect(dead_code, reason = "for stores with leases")
    )]
    pub(crate) ttl: Duration,
}

/// Text that a recipe keeps with an entry, or as a queue's value. No store looks into it.
pub(crate) type Data = Arc<str>;

/// Which entries an entry gets along with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// None: every entry before it blocks it.
    #[default]
    Exclusive,
    /// Other shared ones: only exclusive entries before it block it.
    Shared,
}

impl Mode {
    /// Whether an entry of this mode keeps a later one of that mode waiting.
    pub(crate) fn blocks(self, later: Self) -> bool {
        self == Self::Exclusive || later == Self::Exclusive
    }
}

/// An entry to append.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry {
    pub(crate) entry_ref: EntryRef,
    pub(crate) session: SessionId,
    /// Shown with the entry.
    pub(crate) member: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
    pub(crate) room: Room,
}

/// What its owner has yet to give an entry before its turn has come. A store whose disk may be full keeps room for that from the
/// moment when the entry is let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many updates there are to be.
    pub(crate) updates: usize,
    /// How many bytes of data each of them has at the most.
    pub(crate) bytes: usize,
}

impl Room {
    /// What is left of it after one of the updates.
    pub(crate) fn after_update(self) -> Self {
        Self { updates: self.updates.saturating_sub(1), ..self }
    }
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Its sequence number, which is its fencing token.
    pub(crate) seq: u64,
    /// The newest live entry before it that its [`Mode`] does not get along with; `None`: there is none.
    pub(crate) blocker: Option<Blocker>,
}

/// An entry that another has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) id: EntryId,
    /// Tells it from a later entry of the same id, which other libraries make.
    pub(crate) seq: u64,
}

impl From<&Entry> for Blocker {
    fn from(entry: &Entry) -> Self {
        Self { id: entry.id.clone(), seq: entry.seq }
    }
}

/// An entry as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) seq: u64,
    /// Empty for a contender of another library.
    pub(crate) member: Arc<str>,
    /// When it was entered, by its client's wall clock: shown to people, never used to decide.
    pub(crate) since: Option<SystemTime>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
}

/// A queue as it was at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// Differs whenever anything listed here does; for [`Watching::changed`](super::Watching::changed).
    pub(crate) revision: u64,
    /// The live entries, in order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) value: Option<Value>,
    /// The store's own clock at that moment; `None`: it has none that can be read.
    pub(crate) clock: Option<Clock>,
}

impl Listing {
    /// The entry of this number.
    pub(crate) fn entry(&self, seq: u64) -> Option<&Entry> {
        let index = self.entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        self.entries.get(index)
    }

    /// The entries before this number.
    pub(crate) fn before(&self, seq: u64) -> &[Entry] {
        let end = self.entries.partition_point(|entry| entry.seq < seq);
        self.entries.get(..end).unwrap_or_default()
    }
}

/// A queue's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// Larger than that of every value before it in this queue, removed ones included.
    pub(crate) version: u64,
    pub(crate) data: Data,
    /// The write that made it, where the store keeps that.
    pub(crate) writer: Option<Writer>,
}

/// A write that made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) id: u64,
    /// The version that it replaced.
    pub(crate) replaced: u64,
}

/// A store's clock: the same for all its clients, steady, and never set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Another epoch: the clock has started anew, and older times mean nothing.
    pub(crate) epoch: u64,
    pub(crate) now: Duration,
}

/// A compare-and-set of a queue's value.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) queue: QueueKey,
    /// Random, made by the client: a repeated call is told by it from another's write.
    pub(crate) id: u64,
    /// The version that the value has; `None`: there is no value.
    pub(crate) expected: Option<u64>,
    /// The new value; `None` removes it.
    pub(crate) data: Option<Data>,
    /// Only if the queue has no live entry.
    pub(crate) if_empty: bool,
    /// What is written with it or not at all: at most [`MOST_BESIDE`], none of them twice. Not beside a removal.
    pub(crate) beside: Vec<Beside>,
}

/// How many records a write has beside it, and how many are read at once, at the most: what every store can do in one step.
pub(crate) const MOST_BESIDE: usize = 56;

/// A record of a queue, as a write leaves it.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// Letters, digits and `-`.
    pub(crate) name: Arc<str>,
    /// `None` removes it.
    pub(crate) data: Option<Data>,
    /// Whether there was none before, as of the version that is expected. ZooKeeper creates and changes by two operations.
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code, reason = "one store asks"))]
    pub(crate) is_new: bool,
}

impl Write {
    pub(crate) fn new(queue: &QueueKey, expected: Option<u64>, data: Option<Data>) -> Self {
        let (queue, id) = (queue.clone(), env::rng().random());
        Self { queue, id, expected, data, if_empty: false, beside: Vec::new() }
    }
}
