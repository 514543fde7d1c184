//! The contract between the recipes and a store, and the stores.
//!
//! A store keeps *sessions*, and *entries* in ordered *queues*. A session is a client's liveness:
//! when it ends, its entries end. Besides its entries a queue has at most one *value*, which nobody owns
//! and which is written by compare-and-set. That is all that recipes need; so it is all that a backend
//! implements, and every recipe is written once, above this trait.
//!
//! # Rules for implementers
//!
//! * **Cancel safety.** Any future may be dropped at any await. What was sent may still take effect;
//!   the caller repeats the call under the same id, or removes the entry by it.
//! * **Late calls.** A call that was given up may arrive later than one made after it. It must do no harm: once
//!   `leave` was answered no earlier `enter` of that entry takes effect, once an `update` was answered no earlier
//!   one, and a `write` takes effect at most once.
//! * **Time.** No call waits for the store longer than it must and none retries in a loop: the
//!   session bounds each call by its attempt timeout and decides about retries.
//! * **Errors.** [`ErrorKind::Lost`] means that the store says the session is over; transient
//!   kinds are retried; every other kind is final and goes to the user.
//! * **Order.** An entry's sequence number is its fencing token: strictly larger than every one
//!   given before in the same queue, across crashes, restarts and an empty queue.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use data_encoding::HEXLOWER;
use rand::RngExt;

use crate::characteristics::{Characteristics, LossDetection};
use crate::error::Result;
use crate::key::QueueKey;
use crate::world;

#[cfg(feature = "_network")]
mod access;
#[cfg(feature = "consul")]
pub(crate) mod consul;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(feature = "memory")]
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod registry;
#[cfg(any(feature = "consul", feature = "etcd", feature = "redis"))]
mod rotation;
#[cfg(any(feature = "consul", feature = "etcd"))]
mod slots;
#[cfg(feature = "_network")]
mod stored;
#[cfg(any(feature = "consul", feature = "etcd"))]
mod unanswered;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

/// A session's name at the store: 63 random bits, never zero, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(u64);

impl SessionId {
    pub(crate) fn random() -> Self {
        Self(world::rng().random_range(1..=i64::MAX as u64))
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
            HEXLOWER.encode_mut(&world::rng().random::<u128>().to_be_bytes(), &mut rest[1..]);
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    pub(crate) place: EntryRef,
    pub(crate) session: SessionId,
    /// Shown with the entry.
    pub(crate) member: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
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
    /// Differs whenever anything listed here does; for [`Backend::changed`].
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
}

impl Write {
    pub(crate) fn new(queue: &QueueKey, expected: Option<u64>, data: Option<Data>) -> Self {
        Self { queue: queue.clone(), id: world::rng().random(), expected, data, if_empty: false }
    }
}

/// A store: sessions, ordered entries, and word of their end.
#[async_trait]
pub(crate) trait Backend: Send + Sync + 'static {
    /// The canonical scheme, for errors and logs.
    fn scheme(&self) -> &'static str;

    /// What this store, as found at connect, can promise.
    fn characteristics(&self) -> Characteristics;

    /// How removal of one's own entry is noticed.
    fn loss_detection(&self) -> LossDetection {
        LossDetection::Heartbeat
    }

    /// A renewal that was confirmed proves those that were sent at least this long before it; zero: itself
    /// too. For stores where a server answers before the one that ends sessions has heard of it.
    fn proof_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Opens the session and answers the lease granted; `None`: it lives as long as the process.
    ///
    /// Repeating it with the same id is harmless. [`MemberExists`](crate::ErrorKind::MemberExists)
    /// when another live session has the member id.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>>;

    /// Extends the lease. Answers which of the `held` entries are gone, where
    /// [`loss_detection`](Self::loss_detection) says that it is this call's to find out.
    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>>;

    /// Ends the session and removes all that it owns. Idempotent.
    async fn close(&self, session: SessionId) -> Result<()>;

    /// Appends the entry, or finds it when it is there already, and tells where it stands.
    async fn enter(&self, entry: &NewEntry) -> Result<Position>;

    /// Gives one's own entry, which has this number, the mode and the data that are said here; its number
    /// stays. A shared entry does not become exclusive. False: it is gone, or belongs to another session.
    /// Idempotent.
    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool>;

    /// Removes exactly this entry: the one with this number, where that is known. Idempotent.
    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()>;

    /// Where one's own entry, which has this number, stands now; `None`: it is gone, or belongs to
    /// another session.
    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>>;

    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode. A
    /// notification may be lost, so the store is asked again at least once in every `recheck`. It may
    /// resolve early: callers look again.
    async fn gone(&self, entry: &EntryRef, seq: u64, waiter: Mode, recheck: Duration)
    -> Result<()>;

    /// The queue's live entries and its value, as of one moment.
    async fn read(&self, queue: &QueueKey) -> Result<Listing>;

    /// Writes the queue's value and answers its version (of a removed value: the one it had); `None`: it,
    /// or the queue, is not as expected, and nothing was done. A repeated call answers what the first
    /// one did, unless the value was written again in between, or was removed: then it may answer `None`.
    async fn write(&self, write: &Write) -> Result<Option<u64>>;

    /// Resolves when [`read`](Self::read) would answer another revision than this; after `recheck` in
    /// any case. It may resolve early: callers look again.
    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()>;

    /// The names of the queues of this kind that have a value, in order.
    async fn names(&self, kind: &'static str) -> Result<Vec<String>>;

    /// The names of the queues of this kind that have a live entry, in order.
    async fn queues(&self, kind: &'static str) -> Result<Vec<String>>;

    /// [`enter`](Self::enter), if it can be done here and now without waiting for anything.
    fn enter_now(&self, _entry: &NewEntry) -> Option<Result<Position>> {
        None
    }

    /// [`leave`](Self::leave), if it can be done here and now without waiting for anything.
    fn leave_now(&self, _entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        None
    }

    /// [`close`](Self::close) when the runtime is going away and nothing can be waited for.
    fn close_now(&self, _session: SessionId) {}
}
