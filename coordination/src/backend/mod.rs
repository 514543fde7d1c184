//! The contract between the recipes and a store, and the stores.
//!
//! A store keeps *sessions*, and *entries* in ordered *queues*. A session stands for a client that lives: when the session ends,
//! its entries end too. Besides its entries a queue has at most one *value*, which belongs to no session and is written by
//! compare-and-set. A write of the value can also write *records*: further texts of the queue, each with a name. Recipes need no
//! more than that, so a store implements no more than that, and each recipe is written once, on top of these traits: [`Sessions`],
//! [`Entries`], [`Values`] and [`Watching`]. A store's folder has one file for each of these traits, with the trait's name.
//! [`Store`] combines the four.
//!
//! # What the protocols have in common
//!
//! Each store describes its protocol at the head of its `entries.rs`. PostgreSQL and MySQL have one protocol, described in
//! `server/sql/entries.rs`. Two things are the same on all stores:
//!
//! * *Which entry blocks which.* An exclusive entry is blocked by every older entry of its queue, a shared entry only by older
//!   exclusive entries. An exclusive entry that was downgraded to shared no longer blocks shared entries. New entries come after
//!   all others, and an entry keeps its place. So once no older entry blocks an entry, none ever will, and the client need not ask
//!   again.
//! * *When a holder stops.* A store with leases ends a session, and removes the session's entries, when no heartbeat of the session
//!   has reached the store for the length of the lease. The holder may be cut off from the store, so the store cannot tell it in
//!   time. Therefore the holder computes a deadline by its own clock: the length of the lease, less a margin, after the moment just
//!   before it *sent* the newest heartbeat that was confirmed (the deadline rule in `docs/guarantees.md`; see also
//!   [`proof_delay`](Store::proof_delay)). From the deadline on, the holder's guard says that the lock is lost. A heartbeat reaches
//!   the store later than it is sent, so the store ends the session, and grants the lock to the next waiter, only after the
//!   deadline. In two cases only the fencing token protects the resource: if the store ends the session early or forgets the grant
//!   (A2 and A3 in `docs/guarantees.md`), and if the holder is suspended after it has asked its guard and before it writes to the
//!   resource.
//!
//! # Rules for implementers
//!
//! The signatures say what goes into a call and what comes out of it. These rules say everything else, and every store keeps all of
//! them. Each rule has a name, which also occurs in the names of the tests that check the rule.
//!
//! Calls that are dropped, repeated or late:
//!
//! * `cancel-safe`: the caller may drop the future of any call at any await. A request that was sent before the drop may still take
//!   effect. Afterwards the caller repeats the call under the same id, or removes the entry by its id; the store must do both
//!   correctly.
//! * `repeat`: a caller that got no answer may repeat the call under the same id. A repeated `open` or `enter` finds what the first
//!   call made, and returns the same as the first. A repeated `update` returns true again. A repeated `leave` or `close` succeeds
//!   although the entry or the session is gone already.
//! * `late-open`: once `close` was answered, an `open` of the same session that was sent earlier has no effect, however late the
//!   request reaches the store: it neither takes the member id nor takes it away from a later session.
//! * `late-enter`: once `leave` was answered, an `enter` of the same entry that was sent earlier has no effect, however late the
//!   request reaches the store.
//! * `late-update`: once an `update` was answered, an `update` of the same entry that was sent earlier has no effect.
//! * `late-write`: a `write` whose caller has given up may reach the store after later writes. The store compares the write's
//!   expected version when the write arrives. So this write never overwrites a later write, and never takes effect a second time.
//! * `write-once`: a `write` takes effect at most once, however often it is sent. A repeated call returns the version that the
//!   first call made, unless the value was written or removed since.
//!
//! Time:
//!
//! * `bounded`: every wait for the store has a bound, also inside `gone` and `changed`. For all calls but these two the session
//!   sets the bound: it drops a call that takes too long. `gone` and `changed` may last as long as nothing happens, so they bound
//!   each of their requests themselves. If a request has no answer in time, they return an error after which the caller may retry.
//! * `recheck`: a notification may be lost, so `gone` and `changed` must not depend on notifications. The caller gives them a
//!   duration, `recheck`. At least once in each `recheck` they ask the store again, or they resolve, so that the caller asks. They
//!   may resolve early.
//! * `no-retry`: if the store cannot be reached, a call does not retry until the store is back. The call fails, and the session
//!   decides about retries. But if another client has changed what a call had read, the call may read again and try again.
//!
//! Order:
//!
//! * `order`: an entry's number is its fencing token. The number is larger than every number given before in the same queue, also
//!   after crashes, after restarts of the store, and after the queue was empty.
//! * `blocker`: `enter` and `position` return which entry blocks the caller's entry: the newest live entry before it that is not
//!   compatible with it by [`Mode`]. (In a long queue Consul may return an older entry that blocks it too.) If there is no such
//!   entry, they return no blocker. An entry keeps its number when it is updated.
//! * `versions`: a value's version is larger than every earlier version in the same queue, also after removals.
//! * `beside`: only a `write` changes records, and the change takes effect together with that of the value, or neither does. So if
//!   the value has the same version before and after a read of records, the records that were read belong to that version.
//! * `snapshot`: `read` returns the entries and the value of a queue as of one moment, with a `revision`. Two results that differ
//!   in an entry or in the value have different revisions. An entry has the member id and the label that it was entered with.
//! * `pages`: `queues` and `names` return their names in pages of limited size. So, as far as the store's own interface allows it,
//!   a call takes no longer if there are more names. The caller asks for the first page without a cursor, and for each further page
//!   with the cursor that the page before has. A name that exists from the first call to the last is on at least one page.
//!
//! Ownership:
//!
//! * `own-entries`: a call of `update` or `position` names an open session, and normally one of this session's entries. If the
//!   entry belongs to another session, `update` returns false and `position` returns `None`. Only `leave` changes an entry of
//!   another live session.
//! * `held`: as soon as `renew` finds that a held entry is gone, it reports this entry. If the store cannot say at the moment
//!   whether some entry is gone, `renew` still extends the lease, and still reports the other entries that are gone.
//! * `missing`: `missing` returns those of the held entries that the store does not list as entries of their session. A server that
//!   lags behind may answer, so an entry that is there may be among them, and the caller asks for this entry alone before it
//!   believes that the entry is gone. An entry that is gone is among them sooner or later.
//! * `exact-leave`: `leave` removes exactly the entry that the caller names, and not a later entry that has the same key by now.
//! * `session-end`: when a session ends, by `close` or because its lease ran out, all its entries end with it, and no `enter` under
//!   it succeeds any more. Values that it wrote stay.
//! * `forgets`: from the moment when `close` is called, this process keeps nothing about the session's entries in memory, whether
//!   that call succeeds, fails or is dropped. If the session was lost, perhaps nobody calls `close` a second time, and anything
//!   that is still kept would then stay in memory for ever.
//! * `close-twice`: `close` of a session that is over succeeds and does nothing.
//! * `member`: two live sessions of one namespace never have the same member id.
//!
//! Errors:
//!
//! * `lost`: an error is [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the store says that the session is over, and only then. If
//!   the store cannot be reached, the error is of another kind. The session retries after errors of transient kinds. Errors of all
//!   other kinds are final and go to the user.
//! * `effect`: each error says whether the call may have taken effect. If that is not known, the error's effect is `Unknown`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;

use crate::characteristics::{Characteristics, ServerInfo};
use crate::env::OwnedFile;
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;
use crate::time::BootInstant;

pub(crate) mod descriptor;
mod pages;
#[cfg(any(feature = "consul", feature = "etcd", feature = "file", feature = "zookeeper"))]
mod pending_writes;
pub(crate) mod registry;
#[cfg(feature = "_network")]
mod server;
mod types;

// The modules of the stores, which `registry.rs` lists. They are declared here and not by the macro in `registry.rs`, because
// rustfmt does not format modules that a macro declares.
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

/// Sessions. A session at the store shows other clients that this client lives.
#[async_trait]
pub(crate) trait Sessions: Send + Sync + 'static {
    /// Opens the session, and returns the lease that the store granted; `None`: there is no lease, and the session lives as long as
    /// this process.
    ///
    /// A call may be repeated with the same id. The error is [`MemberExists`](crate::ErrorKind::MemberExists) if another live
    /// session has the member id.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>>;

    /// A lower bound for the moment when the session's lease began; `None`: unknown, but no earlier than the last call of
    /// [`open`](Self::open), so the caller may count from that call. On some stores, opening goes on after the caller of `open` has
    /// given up. A later call of `open` then finds a session whose lease began before this later call. The name: at this moment the
    /// store was `asked` for the session.
    fn asked(&self, _session: SessionId) -> Option<BootInstant> {
        None
    }

    /// Extends the lease. On stores whose [`loss_detection`](Characteristics::loss_detection) is `Heartbeat`, this call also finds
    /// out which of the `held` entries are gone, and calls `gone` for each of those.
    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()>;

    /// Resolves when the store notifies this client that the session is over (T3), and returns why. On stores without such
    /// notifications this never resolves: there, the next [`renew`](Self::renew) fails once the session is over.
    async fn ended(&self, _session: SessionId) -> LossReason {
        std::future::pending().await
    }

    /// Ends the session and removes everything that belongs to it. A repeated call succeeds.
    async fn close(&self, session: SessionId) -> Result<()>;

    /// How many sessions and entries this process has in memory. Tests use it to check the rule `forgets`.
    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        0
    }

    /// Begins to [`close`](Self::close) the session, but does not wait for the store. Used when the runtime is shutting down.
    fn close_now(&self, _session: SessionId) {}

    /// A file that keeps the session alive as long as some process has the file open, even after this process ends; `None`: the
    /// store has no such file.
    fn session_file(&self, _session: SessionId) -> Result<Option<OwnedFile>> {
        Ok(None)
    }
}

/// Ordered entries in queues.
#[async_trait]
pub(crate) trait Entries: Send + Sync + 'static {
    /// Appends the entry to its queue, unless an earlier call has appended it already. Returns the entry's position.
    async fn enter(&self, entry: &NewEntry) -> Result<Position>;

    /// Sets the mode and the data of our own entry with the number `seq` to those of `entry`; the entry keeps its number. Callers
    /// never make a shared entry exclusive: on most stores that fails with `Unsupported`. Returns false if the entry is gone, or
    /// belongs to another session. A repeated call returns the same result.
    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool>;

    /// Hears that our own entry with the number `seq` was just listed as `entry` is, although its last [`update`](Self::update) had no
    /// answer, and was refused when it was repeated. Where a server that takes over may lack updates, this one is made again as
    /// others are.
    fn updated(&self, _entry: &NewEntry, _seq: u64) {}

    /// Called before a grant that the whole queue decides, after the last `update` of the entry: waits until everything that a grant
    /// of this store has to survive is sure to know the entry as it is. Returns false if the entry is gone. A grant that follows from
    /// the answer of `enter` or `position` needs no such call: these wait themselves.
    ///
    /// `seen`: the [source](Listing::source) of the listing by which the turn has come. If another server would confirm by now, or the
    /// same one with other data, the call fails with `Unavailable`, and the caller reads there. `None`: whoever is asked confirms.
    async fn confirm(&self, _entry: &NewEntry, _seen: Option<Source>) -> Result<bool> {
        Ok(true)
    }

    /// Whether [`confirm`](Self::confirm) waits for anybody.
    fn confirms(&self) -> bool {
        false
    }

    /// Removes exactly this entry. If the caller gives `seq`, the entry is removed only if `seq` is its number. A repeated call
    /// succeeds.
    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()>;

    /// The position of our own entry with the number `seq`; `None`: the entry is gone, or belongs to another session.
    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>>;

    /// Whether our own entry with the number `seq` is there. The owner of a held entry asks this to find out that somebody has removed
    /// the entry. So where many calls have to wait for each other, this one does not wait behind them.
    async fn is_there(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        Ok(self.position(entry, seq).await?.is_some())
    }

    /// Whether [`missing`](Self::missing) can tell anything. If not, the holder of each entry looks for its entry itself.
    fn lists_held(&self) -> bool {
        false
    }

    /// Those of the `held` entries of this session that the store does not list: each may be gone, and
    /// [`is_there`](Self::is_there) knows. One request asks for all of them. `None`: they are so many that one answer would be too
    /// long, and nothing was asked.
    async fn missing(
        &self,
        _session: SessionId,
        _held: &[EntryRef],
    ) -> Result<Option<Vec<EntryId>>> {
        Ok(None)
    }

    /// The live entries and the value of the queue, as of one moment.
    async fn read(&self, queue: &QueueKey) -> Result<Listing>;

    /// Returns the queue's value as of a moment during the call. Of the entries, returns at least those that had been entered by
    /// that moment and still exist when the call returns (entries that *stand*). Entries that leave during the call may be missing.
    ///
    /// This is enough for a caller that needs the entries before its own, or that then writes the value on condition of its
    /// version. On a store that needs several requests for a listing, [`read`](Self::read) may fail as long as entries come and go
    /// all the time; this call does not fail for that reason.
    async fn read_standing(&self, queue: &QueueKey) -> Result<Listing> {
        self.read(queue).await
    }

    /// One page of the names of the queues of this kind that have a live entry.
    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;

    /// Removes from the store what it keeps of unused queues: those that have neither an entry nor a value and were not used for
    /// the time `unused`. One call goes through one page of queues. For each queue whose data it removes, this call adds one to
    /// `removed`. Returns where the next page begins.
    async fn prune(
        &self,
        _unused: Duration,
        _from: Option<&Cursor>,
        _removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        Ok(None)
    }

    /// Does what [`prune`](Self::prune) does for this queue, however recently it was used.
    async fn prune_queue(&self, _queue: &QueueKey) -> Result<()> {
        Ok(())
    }

    /// Whether a request to enter this entry of ours may have been sent. If none was sent, a caller that gives up drops its call of
    /// [`enter`](Self::enter) at once. If one may have been sent, the caller waits for the answer first.
    fn was_sent(&self, _entry: &EntryRef) -> bool {
        true
    }

    /// Does [`enter`](Self::enter) at once, if that needs no waiting; `None`: it would have to wait, and nothing was done.
    fn enter_now(&self, _entry: &NewEntry) -> Option<Result<Position>> {
        None
    }

    /// Does [`leave`](Self::leave) at once, if that needs no waiting; `None`: it would have to wait, and nothing was done.
    fn leave_now(&self, _entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        None
    }
}

/// Values of queues, which belong to no session.
#[async_trait]
pub(crate) trait Values: Send + Sync + 'static {
    /// Writes the queue's value. Returns the new version; for a removal, the version that was removed. `None`: the value, the queue or
    /// who is asked is not as `write` expects, and nothing was done. A repeated call returns what the first call returned. But if the
    /// value was written or removed between the two calls, the repeated call may return `None`.
    async fn write(&self, write: &Write) -> Result<Option<u64>>;

    /// Reads the queue's records with these names, which are at most [`MOST_BESIDE`]. Returns them in the order of the names, with
    /// `None` for a record that does not exist. The records are not read as of one moment: each may be read at another moment.
    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>>;

    /// One page of the names of the queues of this kind that have a value.
    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page>;
}

/// Waiting until another client changes an entry or a queue.
#[async_trait]
pub(crate) trait Watching: Send + Sync + 'static {
    /// Resolves when the entry with this number is gone, or when it no longer blocks a waiter of the mode `waiter`. A notification
    /// may be lost, so this call asks the store again at least once in each `recheck`. This call may resolve early: callers read
    /// the store again afterwards.
    async fn gone(&self, entry: &EntryRef, seq: u64, waiter: Mode, recheck: Duration)
    -> Result<()>;

    /// Does what [`gone`](Self::gone) does, for the owner of the entry `own`, which `blocker` blocks, as the [`Position`] of `own`
    /// says. So where clients tell each other of changes, whoever removes the blocker can find this waiter, and need not wake all
    /// others.
    async fn unblocked(&self, own: &NewEntry, blocker: &Blocker, recheck: Duration) -> Result<()> {
        let entry = EntryRef { queue: own.entry_ref.queue.clone(), id: blocker.id.clone() };
        self.gone(&entry, blocker.seq, own.mode, recheck).await
    }

    /// Resolves when [`read`](Entries::read) would return another revision than `revision`, and after `recheck` in any case. This
    /// call may resolve early: callers read the store again afterwards.
    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()>;
}

/// A connected store.
pub(crate) trait Store: Sessions + Entries + Values + Watching {
    /// The store's name, which is its first scheme: for errors and logs.
    fn scheme(&self) -> &'static str;

    /// What this store promises, as this client found out while it connected.
    fn characteristics(&self) -> Characteristics;

    /// What the server said of itself while this client connected. Nothing is asked for it.
    fn server_info(&self) -> ServerInfo {
        ServerInfo::default()
    }

    /// On some stores, a server may confirm a renewal before the server that ends sessions has heard of it. There, the confirmation
    /// of a renewal does not prove that this renewal has extended the lease. It only proves that those earlier renewals have
    /// extended the lease whose answers came at least this long before this renewal was sent. Zero: the confirmation of a renewal
    /// proves that this renewal has extended the lease.
    fn proof_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Some stores end a connection together with its session, and say only on the next connection that the session is over. On
    /// these stores, this is how long the client may wait before it connects again; on all others it is zero. The session adds this
    /// delay to the time within which a holder is told of a loss.
    fn reconnect_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether this error of a call says that the process has no file descriptor left. An entry that waits goes on waiting then.
    fn lacks_descriptors(&self, _error: &Error) -> bool {
        false
    }
}
