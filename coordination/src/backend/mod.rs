//! The contract between the recipes and a store, and the stores.
//!
//! A store keeps *sessions*, and *entries* in ordered *queues*. A session is a client's liveness: when it ends, its entries end.
//! Besides its entries a queue has at most one *value*, which nobody owns and which is written by compare-and-set. A write of the
//! value can also write *records*, further texts of the queue, each with a name. That is all that recipes need; so it is all that a
//! store implements, and every recipe is written once, above these traits: [`Sessions`], [`Entries`], [`Values`] and [`Watching`],
//! each implemented in the file of its name in the store's folder, and [`Store`], which has them all.
//!
//! # Rules for implementers
//!
//! The types say what goes in and out. These rules say the rest, and every store keeps all of them. Each has a name,
//! which the checks of the traits have too.
//!
//! Calls that are dropped, repeated or late:
//!
//! * `cancel-safe`: the caller may drop any future at any await. A request that was sent by then may still take effect. The
//!   caller repeats the call under the same id, or removes the entry by its id; both must work then.
//! * `repeat`: a call may be repeated under the same id, because its answer was lost. `open` and `enter` find what the earlier
//!   call made and return the same; `update` returns true again; `leave` and `close` succeed if the entry or the session is gone
//!   already.
//! * `late-open`: once `close` was answered, an `open` of this session that was sent earlier has no effect, however late the
//!   request reaches the store: it neither takes the member id nor takes it away from a later session.
//! * `late-enter`: once `leave` was answered, an `enter` of this entry that was sent earlier has no effect, however late the
//!   request reaches the store.
//! * `late-update`: once an `update` was answered, an `update` of this entry that was sent earlier has no effect.
//! * `late-write`: a `write` that was given up may reach the store after later writes. The store compares the write's expected
//!   version when the write arrives, so that it never overwrites a later write, and never takes effect a second time.
//! * `write-once`: a `write` takes effect at most once, however often it is sent. A repeated call returns the version that the
//!   first one made, unless the value was written or removed since.
//!
//! Time:
//!
//! * `bounded`: no await on the store is without a bound, inside `gone` and `changed` too. The session bounds all calls but these
//!   two, by dropping them. `gone` and `changed` may last as long as nothing happens, so they bound each of their requests
//!   themselves, and a request without an answer in time is an error that can be retried.
//! * `recheck`: `gone` and `changed` must not depend on a notification, which may be lost: they ask the store again at least once
//!   in every `recheck`, or resolve so that the caller asks. They may resolve early.
//! * `no-retry`: no call retries in a loop until the store is back. It fails, and the session decides about retries. But a call may
//!   try again if another client has changed what the call depends on since the call read it.
//!
//! Order:
//!
//! * `order`: an entry's number is its fencing token. It is larger than every number given before in the same queue, also after
//!   crashes, after restarts of the store, and after the queue was empty.
//! * `blocker`: `enter` and `position` name the newest live entry before the call's own entry that is not compatible with it by
//!   [`Mode`], and none if there is no such entry. An entry keeps its number when it is updated.
//! * `versions`: a value's version is larger than every earlier version in the same queue, also after removals.
//! * `beside`: the records of a `write` are written together with the value or not at all, and by nothing else. So if the value has
//!   the same version before and after a read of records, the records that were read belong to that version.
//! * `snapshot`: `read` returns entries and value as of one moment, and another `revision` whenever any of them differs.
//! * `pages`: `queues` and `names` return a page at a time, so that a call does not take longer if there are more names, as far
//!   as the store's own interface allows. The first page is asked for without a cursor, each further one with the cursor of the
//!   page before. A name that exists from the first page to the last is on at least one of them.
//!
//! Ownership:
//!
//! * `own-entries`: `update` and `position` are for entries of the session that is named in the call, which is open. For an entry
//!   of another session `update` returns false, and `position` `None`. No call but `leave` changes an entry of another session.
//! * `held`: `renew` reports each held entry that is gone as soon as it has found that out. If it cannot be found out at the
//!   moment whether one entry is gone, `renew` still extends the lease, and still reports the others.
//! * `exact-leave`: `leave` removes exactly the entry that is named, and not a later one that has the same key by now.
//! * `session-end`: when a session ends, by `close` or because its lease ran out, all its entries end with it, and no
//!   `enter` under it succeeds any more. Its values stay.
//! * `forgets`: from the moment when `close` is called, nothing is kept in the process of a session's entries, whether that call
//!   succeeds, fails or is dropped. For a session that was lost there may be no second call of `close`.
//! * `close-twice`: `close` of a session that is over succeeds and does nothing.
//! * `member`: two live sessions of one namespace never have the same member id.
//!
//! Errors:
//!
//! * `lost`: an error is [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the store says that the session is over, and only then:
//!   not if the store cannot be reached. Transient kinds are retried. Every other kind is final and goes to the user.
//! * `effect`: an error says whether the call may have taken effect; if that is not known, the effect is `Unknown`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;

use crate::characteristics::Characteristics;
use crate::error::{LossReason, Result};
use crate::key::QueueKey;
use crate::time::BootInstant;

pub(crate) mod descriptor;
mod pages;
pub(crate) mod registry;
#[cfg(feature = "_network")]
mod server;
mod types;

// The stores, which `registry.rs` lists. They are declared here and not by its macro, because rustfmt does not format a module
// that a macro declares.
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "memory")]
pub(crate) mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub(crate) use self::pages::*;
pub(crate) use self::types::*;

/// Sessions: a client's liveness at the store.
#[async_trait]
pub(crate) trait Sessions: Send + Sync + 'static {
    /// Opens the session, and returns the lease that the store granted; `None`: the session lives as long as the process.
    ///
    /// Repeating the call with the same id is harmless. The error is [`MemberExists`](crate::ErrorKind::MemberExists) if another
    /// live session has the member id.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>>;

    /// When the lease of a session began; `None`: not before the last call of [`open`](Self::open). On some stores, opening goes
    /// on if the call that began it is given up. A later call then finds a session that is older than itself.
    fn asked(&self, _session: SessionId) -> Option<BootInstant> {
        None
    }

    /// Extends the lease. On stores whose [`loss_detection`](Characteristics::loss_detection) says so, this call also finds out
    /// which of the `held` entries are gone, and reports them to `gone`.
    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()>;

    /// Resolves with the reason when the store says by itself that the session is over (T3). On stores that do not say so, this
    /// never resolves: there the next [`renew`](Self::renew) finds it out.
    async fn ended(&self, _session: SessionId) -> LossReason {
        std::future::pending().await
    }

    /// Ends the session and removes all that belongs to it. Idempotent.
    async fn close(&self, session: SessionId) -> Result<()>;

    /// How many things this process remembers of sessions and their entries. Used to check the rule `forgets`.
    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        0
    }

    /// [`close`](Self::close) without waiting for the store, for when the runtime is shutting down.
    fn close_now(&self, _session: SessionId) {}

    /// A file that keeps the session alive as long as some process has it open, even after this process ends; `None`: the store
    /// has no such file.
    fn session_file(&self, _session: SessionId) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// Ordered entries in queues.
#[async_trait]
pub(crate) trait Entries: Send + Sync + 'static {
    /// Appends the entry, or finds it if it is there already. Returns its position.
    async fn enter(&self, entry: &NewEntry) -> Result<Position>;

    /// Gives our own entry, which has the number `seq`, the mode and the data of `entry`; the entry keeps its number. A shared
    /// entry cannot become exclusive. False: the entry is gone, or belongs to another session. Idempotent.
    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool>;

    /// Removes exactly this entry: the one with the number `seq`, if that is known. Idempotent.
    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()>;

    /// The position of our own entry, which has the number `seq`; `None`: the entry is gone, or belongs to another session.
    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>>;

    /// The live entries and the value of the queue, as of one moment.
    async fn read(&self, queue: &QueueKey) -> Result<Listing>;

    /// The queue's value at a moment during the call, and at least the entries that had been entered by that moment and exist
    /// until the call is over. Entries that leave during the call may be missing.
    ///
    /// This is enough for a caller who needs the entries before its own, or who makes a change on condition of the value's
    /// version. On a store whose listing takes several requests, [`read`](Self::read) may fail as long as entries come and go all
    /// the time; this call does not.
    async fn read_standing(&self, queue: &QueueKey) -> Result<Listing> {
        self.read(queue).await
    }

    /// A page of the names of the queues of this kind that have a live entry.
    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;

    /// Removes what a store keeps of queues that have neither entry nor value and were not used for this long. Goes through one
    /// page of queues, adds one to `removed` for each that was removed, and returns where the next page begins.
    async fn prune(
        &self,
        _unused: Duration,
        _from: Option<&Cursor>,
        _removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        Ok(None)
    }

    /// Whether a call that enters this entry of ours may have been sent. If not, nothing needs to be undone when the caller gives
    /// up.
    fn was_sent(&self, _entry: &EntryRef) -> bool {
        true
    }

    /// Does [`enter`](Self::enter) on the spot, if it can be done without waiting; `None`: it cannot.
    fn enter_now(&self, _entry: &NewEntry) -> Option<Result<Position>> {
        None
    }

    /// Does [`leave`](Self::leave) on the spot, if it can be done without waiting; `None`: it cannot.
    fn leave_now(&self, _entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        None
    }
}

/// Values of queues, which belong to no session.
#[async_trait]
pub(crate) trait Values: Send + Sync + 'static {
    /// Writes the queue's value and returns its version; for a removal, the version that was removed. `None`: the value or the
    /// queue is not as the write expects, and nothing was done. A repeated call returns what the first one did. If the value was
    /// written or removed in between, it may return `None`.
    async fn write(&self, write: &Write) -> Result<Option<u64>>;

    /// The queue's records with these names, at most [`MOST_BESIDE`], in the order of the names; `None` stands for a record that
    /// does not exist. Each record is read at a moment of its own.
    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>>;

    /// A page of the names of the queues of this kind that have a value.
    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;
}

/// Waiting for changes that others make.
#[async_trait]
pub(crate) trait Watching: Send + Sync + 'static {
    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode. A notification may be lost,
    /// so the store is asked again at least once in every `recheck`. The call may resolve early: callers read the store again.
    async fn gone(&self, entry: &EntryRef, seq: u64, waiter: Mode, recheck: Duration)
    -> Result<()>;

    /// Resolves when [`read`](Entries::read) would return another revision than this, and after `recheck` in any case. The call
    /// may resolve early: callers read the store again.
    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()>;
}

/// A connected store.
pub(crate) trait Store: Sessions + Entries + Values + Watching {
    /// The store's name, which is its first scheme: for errors and logs.
    fn scheme(&self) -> &'static str;

    /// What this store can promise, as found out while connecting.
    fn characteristics(&self) -> Characteristics;

    /// On some stores, a server may confirm a renewal before the server that ends sessions has heard of it. There, a confirmed
    /// renewal proves nothing about itself, but it proves that earlier renewals have taken effect: those that were answered at
    /// least this long before it was sent. Zero: a confirmed renewal proves itself, too.
    fn proof_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// For stores that end a connection together with its session, and say why only on the next connection: how long the client
    /// may wait before it connects again.
    fn reconnect_delay(&self) -> Duration {
        Duration::ZERO
    }
}
