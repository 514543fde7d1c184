//! The contract between the recipes and a store, and the stores.
//!
//! A store keeps *sessions*, and *entries* in ordered *queues*. A session is a client's liveness:
//! when it ends, its entries end. That is all a lock needs; so it is all that a backend implements,
//! and every recipe is written once, above this trait.
//!
//! # Rules for implementers
//!
//! * **Cancel safety.** Any future may be dropped at any await. What was sent may still take effect;
//!   the caller repeats the call under the same id, or removes the entry by it.
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

use crate::characteristics::Characteristics;
use crate::error::Result;
use crate::key::QueueKey;

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(feature = "memory")]
pub(crate) mod memory;
pub(crate) mod registry;

/// A session's name at the store: 63 random bits, never zero, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(u64);

impl SessionId {
    pub(crate) fn random() -> Self {
        Self(rand::random_range(1..=i64::MAX as u64))
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
            HEXLOWER.encode_mut(&rand::random::<u128>().to_be_bytes(), &mut rest[1..]);
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    #[cfg(any(feature = "etcd", feature = "file"))]
    pub(crate) fn from_store(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    #[cfg(feature = "file")]
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    #[cfg(any(feature = "etcd", feature = "file"))]
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
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "for stores with leases"))]
    pub(crate) ttl: Duration,
}

/// An entry to append.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry {
    pub(crate) place: EntryRef,
    pub(crate) session: SessionId,
    #[cfg_attr(
        not(any(feature = "memory", feature = "etcd")),
        expect(dead_code, reason = "a file has it with the session")
    )]
    pub(crate) member: Arc<str>,
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Its sequence number, which is its fencing token.
    pub(crate) seq: u64,
    /// The newest live entry before it; `None`: it is first.
    pub(crate) predecessor: Option<Predecessor>,
}

/// The entry before one's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) id: EntryId,
    /// Tells it from a later entry of the same id, which other libraries make.
    pub(crate) seq: u64,
}

/// An entry as listed.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) seq: u64,
    /// Empty for a contender of another library.
    pub(crate) member: String,
    /// When it was entered, by its client's wall clock: shown to people, never used to decide.
    pub(crate) since: Option<SystemTime>,
}

/// How a session learns that one of its entries was removed by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossDetection {
    /// By [`Backend::gone`] on its own entry: at once.
    #[cfg(feature = "etcd")]
    Watch,
    /// By the answer to each heartbeat.
    Heartbeat,
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

    /// Removes exactly this entry: the one with this number, where that is known. Idempotent.
    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()>;

    /// Where one's own entry, which has this number, stands now; `None`: it is gone, or belongs to
    /// another session.
    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>>;

    /// All live entries in order.
    async fn entries(&self, queue: &QueueKey) -> Result<Vec<Entry>>;

    /// Resolves when the entry with this number is gone. A notification may be lost, so the store
    /// is asked again at least once in every `recheck`. It may resolve early: callers look again.
    async fn gone(&self, entry: &EntryRef, seq: u64, recheck: Duration) -> Result<()>;

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
