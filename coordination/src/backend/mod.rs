//! The contract between the recipes and a store, and the stores.
//!
//! A store keeps *sessions*, and *entries* in ordered *queues*. A session is a client's liveness:
//! when it ends, its entries end. Besides its entries a queue has at most one *value*, which nobody owns
//! and which is written by compare-and-set, with *records* beside it. That is all that recipes need; so it is all that a store
//! implements, and every recipe is written once, above these traits: [`Sessions`], [`Entries`], [`Values`] and
//! [`Watching`], each implemented in the file of its name in the store's folder, and [`Store`], which has them all.
//!
//! # Rules for implementers
//!
//! The types say what goes in and out. These rules say the rest, and every store keeps all of them. Each has a name,
//! which the checks of the traits have too.
//!
//! Calls that are dropped, repeated or late:
//!
//! * `cancel-safe`: the caller may drop any future at any await. A request that was sent by then may still take effect.
//!   The caller repeats the call under the same id, or removes the entry by its id; both must work then.
//! * `repeat`: a call may be repeated under the same id, because its answer was lost. `open` and `enter` find what the
//!   earlier call made and answer the same; `update` answers true again; `leave` and `close` of what is gone succeed.
//! * `late-open`: once `close` was answered, no `open` of this session that was sent before it takes its member id any
//!   more, nor that of a later session, however late its request reaches the store.
//! * `late-enter`: once `leave` was answered, no `enter` of this entry that was sent before it takes effect any more,
//!   however late its request reaches the store.
//! * `late-update`: once an `update` was answered, no `update` of this entry that was sent before it takes effect.
//! * `late-write`: a `write` that was given up may reach the store after later writes. It is compared like any other,
//!   so that it never overwrites what came later, and never takes effect a second time.
//! * `write-once`: a `write` takes effect at most once, however often it is sent. A repeated one answers the version
//!   that the first one made, unless the value was written or removed since.
//!
//! Time:
//!
//! * `bounded`: no await on the store is without a bound, inside `gone` and `changed` too. The session bounds all calls
//!   but these two, by dropping them. `gone` and `changed` may last as long as nothing happens, so they bound each
//!   single request of theirs themselves, and a request without an answer in time is an error that can be retried.
//! * `recheck`: `gone` and `changed` must not depend on a notification, which may be lost: they ask the store again at
//!   least once in every `recheck`, or resolve so that the caller asks. They may resolve early.
//! * `no-retry`: no call retries in a loop until the store is back. It fails, and the session decides about retries.
//!   A call may begin anew where others changed what it needs meanwhile.
//!
//! * `beside`: the records beside a `write` are written with the value or not at all, and by nothing else. So what was read
//!   of them is so as long as the value has the version that it had before and after.
//!
//! Order:
//!
//! * `order`: an entry's number is its fencing token. It is larger than every number given before in the same queue,
//!   across crashes, restarts of the store, and an empty queue.
//! * `blocker`: `enter` and `position` name the newest live entry before this one that is not compatible with it by
//!   [`Mode`], and none if there is no such entry. An entry keeps its number when it is updated.
//! * `versions`: a value's version is larger than every version before in the same queue, across removals too.
//! * `snapshot`: `read` answers entries and value as of one moment, and another `revision` whenever any of it differs.
//! * `pages`: `queues` and `names` answer a page at a time, so that no call takes longer the more names there are; as far
//!   as the store's own interface allows. The first page is asked for without a cursor, each further one with that of the
//!   page before. What is there from the first page to the last is on one of them, or on several.
//!
//! Ownership:
//!
//! * `own-entries`: `update` and `position` answer for entries of the session that is named in the call, which is open;
//!   for an entry of another session they answer false and `None`. No call but `leave` changes an entry of another
//!   session.
//! * `held`: `renew` tells of each held entry that is gone as soon as it has found that. What is wrong with one entry, or
//!   cannot be found out of it now, keeps back neither the heartbeat nor the news of others.
//! * `exact-leave`: `leave` removes exactly the entry that is named, and none that came later and has its key by now.
//! * `session-end`: when a session ends, by `close` or because its lease ran out, all its entries end with it, and no
//!   `enter` under it succeeds any more. Its values stay.
//! * `forgets`: from the moment when `close` is called, nothing is kept in the process of a session's entries, whatever becomes of
//!   that call: a session that is lost may have no other.
//! * `close-twice`: `close` of a session that is over succeeds and does nothing.
//! * `member`: two live sessions of one namespace never have the same member id.
//!
//! Errors:
//!
//! * `lost`: [`ErrorKind::Lost`](crate::ErrorKind::Lost) means that the store says that the session is over, and nothing
//!   else is of that kind: a store that cannot be reached is not. Transient kinds are retried. Every other kind is
//!   final and goes to the user.
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

// The stores, which `registry.rs` lists. Not in its macro: rustfmt formats no module that a macro declares.
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
    /// Opens the session and answers the lease granted; `None`: it lives as long as the process.
    ///
    /// Repeating it with the same id is harmless. [`MemberExists`](crate::ErrorKind::MemberExists)
    /// when another live session has the member id.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>>;

    /// Since when the lease of a session that [`open`](Self::open) has answered counts, if from before that call: an opening may go
    /// on when the call that began it is given up.
    fn asked(&self, _session: SessionId) -> Option<BootInstant> {
        None
    }

    /// Extends the lease. Tells which of the `held` entries are gone, where
    /// [`loss_detection`](Characteristics::loss_detection) says that it is this call's to find out.
    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()>;

    /// Resolves with the reason when the store says by itself that the session is over, where one does (T3). Never on other
    /// stores, where the next [`renew`](Self::renew) tells.
    async fn ended(&self, _session: SessionId) -> LossReason {
        std::future::pending().await
    }

    /// Ends the session and removes all that it owns. Idempotent.
    async fn close(&self, session: SessionId) -> Result<()>;

    /// How much is kept here of sessions and their entries, for the check of `forgets`.
    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        0
    }

    /// [`close`](Self::close) when the runtime is going away and nothing can be waited for.
    fn close_now(&self, _session: SessionId) {}

    /// What keeps the session alive beyond this process' death, for who has it open; `None`: there is no such thing.
    fn session_file(&self, _session: SessionId) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// Ordered entries in queues.
#[async_trait]
pub(crate) trait Entries: Send + Sync + 'static {
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

    /// The queue's live entries and its value, as of one moment.
    async fn read(&self, queue: &QueueKey) -> Result<Listing>;

    /// The queue's value at a moment during the call, and the entries that had come by then and stand until the call is over.
    /// Others that have left meanwhile may be missing.
    ///
    /// For whoever asks what stands before an entry of his own, or for a change that counts only if the value is as it was
    /// read. A store in which a look takes several requests may have no [`read`](Self::read) of a queue into which others come
    /// and from which they go all the time, and always has this.
    async fn read_standing(&self, queue: &QueueKey) -> Result<Listing> {
        self.read(queue).await
    }

    /// A page of the names of the queues of this kind that have a live entry.
    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;

    /// Removes what a page of queues has left that have neither an entry nor a value and were not used for this long,
    /// where a store keeps something of such queues. Counts them one by one, and answers where the next page begins.
    async fn prune(
        &self,
        _unused: Duration,
        _from: Option<&Cursor>,
        _removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        Ok(None)
    }

    /// Whether a call that enters this entry, which is our own, may have been sent: one that was not is dropped when nobody
    /// waits for it any longer.
    fn was_sent(&self, _entry: &EntryRef) -> bool {
        true
    }

    /// [`enter`](Self::enter), if it can be done here and now without waiting for anything.
    fn enter_now(&self, _entry: &NewEntry) -> Option<Result<Position>> {
        None
    }

    /// [`leave`](Self::leave), if it can be done here and now without waiting for anything.
    fn leave_now(&self, _entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        None
    }
}

/// Values of queues, which belong to no session.
#[async_trait]
pub(crate) trait Values: Send + Sync + 'static {
    /// Writes the queue's value and answers its version (of a removed value: the one it had); `None`: it,
    /// or the queue, is not as expected, and nothing was done. A repeated call answers what the first
    /// one did, unless the value was written again in between, or was removed: then it may answer `None`.
    async fn write(&self, write: &Write) -> Result<Option<u64>>;

    /// The queue's records of these names, [`MOST_BESIDE`] at the most, in order; `None` stands for one that is not there.
    /// Each as of a moment of its own.
    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>>;

    /// A page of the names of the queues of this kind that have a value.
    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;
}

/// Waiting for what others do.
#[async_trait]
pub(crate) trait Watching: Send + Sync + 'static {
    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode. A
    /// notification may be lost, so the store is asked again at least once in every `recheck`. It may
    /// resolve early: callers look again.
    async fn gone(&self, entry: &EntryRef, seq: u64, waiter: Mode, recheck: Duration)
    -> Result<()>;

    /// Resolves when [`read`](Entries::read) would answer another revision than this; after `recheck` in
    /// any case. It may resolve early: callers look again.
    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()>;
}

/// A store that is connected.
pub(crate) trait Store: Sessions + Entries + Values + Watching {
    /// Its name, which is its first scheme: for errors and logs.
    fn scheme(&self) -> &'static str;

    /// What this store, as found at connect, can promise.
    fn characteristics(&self) -> Characteristics;

    /// A renewal that was confirmed proves those that were answered at least this long before it was sent; zero: itself
    /// too. For stores where a server answers before the one that ends sessions has heard of it.
    fn proof_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// How long the client may wait before it connects again, on stores that end a connection with its session, and say why
    /// on the next one.
    fn reconnect_delay(&self) -> Duration {
        Duration::ZERO
    }
}
