//! The coordinator: a process' session on a store, from which everything else is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::backend::registry::Target;
use crate::characteristics::{Characteristics, ServerInfo};
use crate::config::Config;
use crate::env::{self, Unforked};
use crate::error::{Error, ErrorKind, Result};
use crate::global::{Slot, with_slot};
use crate::key::QueueKey;
use crate::recipe::engine::queue::{KeepsOpen, Queue};
use crate::serialize;
use crate::session::keeper::{self, Control};
use crate::session::{CutOff, Having, Session, State, StateWatch};

/// One process' session on a store: connect at boot, then acquire locks and everything else with it.
///
/// Cheap to clone; clones share the session. A task of its own, on a thread of its own, keeps the
/// session alive and opens a new one when it is lost. When the last clone, and the last
/// [`Lock`](crate::Lock) and guard made from it, are gone, the session is closed.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::Coordinator;
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// println!("holding {} with token {}", guard.name(), guard.token());
/// drop(guard);
/// coordinator.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Coordinator(Arc<Inner>);

struct Inner {
    session: Arc<Session>,
    /// Dropping this closes the session. `None` only while the coordinator is being dropped.
    control: Option<Control>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child must neither end its parent's session nor touch the connections that they share.
        if !self.session.is_own_process() {
            std::mem::forget(self.control.take());
        }
    }
}

impl Coordinator {
    /// Connects to the store that `url` names and opens a session on it.
    ///
    /// The schemes that this build knows, and their options, are in the crate's documentation. For more
    /// settings use [`builder`](Self::builder) or [`Config`].
    ///
    /// # Errors
    ///
    /// Failures are reported within five seconds, even if the store does not answer. If a failed call has left
    /// a session at the store, that session ends with its lease.
    ///
    /// * [`ErrorKind::Config`]: the URL or an option is wrong.
    /// * [`ErrorKind::Unsupported`]: the scheme's feature is off, the URL asks for TLS and the feature `tls` is off, or `require` is
    ///   not met.
    /// * [`ErrorKind::Dns`], [`Refused`](ErrorKind::Refused), [`Unavailable`](ErrorKind::Unavailable),
    ///   [`Tls`](ErrorKind::Tls), [`Auth`](ErrorKind::Auth), [`Permission`](ErrorKind::Permission):
    ///   the store cannot be used, for the reason that the kind names.
    /// * [`ErrorKind::MemberExists`]: another live session has the member id.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up connecting; if a session is opened after that, it is closed again.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Coordinator, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = Coordinator::connect("memory://?heartbeat=2s&long_wait=10s").await?;
    /// coordinator.stop().await?;
    ///
    /// // An option that nobody knows is an error, which lists those that are known.
    /// let error = Coordinator::connect("memory://?heartbeats=2s").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Config);
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, Config::default()).await
    }

    pub(crate) async fn connect_with(url: &str, config: Config) -> Result<Self> {
        let (target, settings) = Target::parse(url, config)?;
        tracing::debug!(store = %target, member = ?settings.member, "connecting");
        let (session, control) = keeper::start(target, settings).await?;
        Ok(Self(Arc::new(Inner { session, control: Some(control) })))
    }

    /// Makes this the global coordinator, which `#[synchronized]` uses.
    ///
    /// Call it once, at process boot. Another coordinator can be installed only after this one was stopped. In a test, each scope
    /// of `coordination::testing` (feature `testing`) has a global coordinator of its own, and within a scope this
    /// installs it there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Global`] when there is a global coordinator that was not stopped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// use coordination::Coordinator;
    ///
    /// Coordinator::connect("memory://").await?.install()?;
    /// assert!(Coordinator::global().is_ok());
    /// # Ok(()) }
    /// ```
    pub fn install(&self) -> Result<()> {
        if with_slot(|slot| slot.install(self)) {
            return Ok(());
        }
        let message =
            "there is a global coordinator already; install one per process, or stop it first";
        Err(Error::new(ErrorKind::Global, "install", message))
    }

    /// The global coordinator.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Global`] when none was installed.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Coordinator, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// assert_eq!(Coordinator::global().unwrap_err().kind(), ErrorKind::Global);
    /// Coordinator::connect("memory://").await?.install()?;
    /// let guard = Coordinator::global()?.lock("vol-7")?.acquire(None).await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn global() -> Result<Self> {
        with_slot(Slot::installed).ok_or_else(|| {
            let message = "there is no global coordinator: call Coordinator::connect(url).await?.install()? before, at process boot; or name one by `coordinator = ..`; or, in a test, enter a scope of `coordination::testing`";
            Error::new(ErrorKind::Global, "global", message)
        })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0.session
    }

    /// Whether it has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.session.state() == State::Closed
    }

    /// The queue of this kind and name, with the prefix before the name.
    pub(crate) fn queue_of(&self, kind: &'static str, name: &str) -> Result<Queue> {
        let session = &self.0.session;
        if name.is_empty() {
            return Err(crate::NameError::Empty.into());
        }
        let key = match session.settings.prefix.as_str() {
            "" => QueueKey::new(kind, name, session.settings.max_name_bytes),
            prefix => {
                QueueKey::new(kind, &format!("{prefix}{name}"), session.settings.max_name_bytes)
            }
        };
        let keeps_open: KeepsOpen = Arc::clone(&self.0) as _;
        Ok(Queue::new(Arc::clone(session), key?, keeps_open))
    }

    /// The names of the queues of this kind that have a value: only names that begin with the coordinator's prefix, returned
    /// without it.
    pub(crate) async fn names(
        &self,
        operation: &'static str,
        kind: &'static str,
    ) -> Result<Vec<String>> {
        Ok(self.without_prefix(&self.0.session.names(operation, kind, Having::AValue).await?))
    }

    /// The names of the queues of this kind that have a live entry: only names that begin with the coordinator's prefix, returned
    /// without it.
    pub(crate) async fn names_in_use(
        &self,
        operation: &'static str,
        kind: &'static str,
    ) -> Result<Vec<String>> {
        Ok(self.without_prefix(&self.0.session.names(operation, kind, Having::AnEntry).await?))
    }

    /// Removes what unused names have left at the store, and returns the number of these names.
    ///
    /// On `file://` each name that was ever used has a file; on PostgreSQL and MySQL it has a row. The file or row is removed
    /// if nobody holds the name or waits for it, if the name has no value (as a counter has, or a semaphore its number of
    /// permits), and if it was last used at least `unused` ago, for instance an hour; zero: however recently. Pruning is safe
    /// while others use the store, and fencing tokens go on rising. Names of the whole namespace count, whatever the
    /// coordinator's prefix.
    ///
    /// Other stores keep nothing of such names beyond the sessions that used them; there the call does nothing and returns 0.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer. Names that the call had removed before
    /// the error stay removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the removal: some unused names may be left.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let directory = tempfile::tempdir().expect("a directory");
    /// # let url = format!("file://{}/locks?network_filesystem=allow", directory.path().display());
    /// let coordinator = coordination::Coordinator::connect(&url).await?;
    /// coordinator.lock("vol-7")?.acquire(None).await?.release().await?;
    /// let held = coordinator.lock("vol-8")?.acquire(None).await?;
    ///
    /// assert_eq!(coordinator.prune(Duration::ZERO).await?, 1);
    /// assert!(held.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn prune(&self, unused: Duration) -> Result<u64> {
        self.0.session.prune(unused).await
    }

    /// Does what [`prune`](Self::prune) does for the lock, the value and the group of this name, however recently they were used.
    ///
    /// For the command `coordination`, and no part of the promises of this library.
    ///
    /// # Errors
    ///
    /// Those of [`prune`](Self::prune), and [`ErrorKind::Name`].
    ///
    /// # Cancel safety
    ///
    /// As for [`prune`](Self::prune).
    #[doc(hidden)]
    pub async fn prune_name(&self, name: &str) -> Result<()> {
        for kind in ["lock", "value", "group"] {
            let queue = self.queue_of(kind, name)?;
            self.0.session.prune_queue(&queue.key).await?;
        }
        Ok(())
    }

    fn without_prefix(&self, names: &[String]) -> Vec<String> {
        let prefix = &self.0.session.settings.prefix;
        let stripped = names.iter().filter_map(|name| name.strip_prefix(prefix));
        stripped.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// The member id of this process, with the coordinator's prefix: unique among live sessions.
    pub fn member_id(&self) -> &str {
        &self.0.session.settings.member
    }

    /// A watch of the session's state, beginning with the current one.
    pub fn state(&self) -> StateWatch {
        self.0.session.watch_state()
    }

    /// What the connected store can promise.
    pub fn characteristics(&self) -> Characteristics {
        self.0.session.backend.characteristics().by_clock(env::COUNTS_SUSPEND)
    }

    /// What the store's server said of itself when this coordinator connected, for people who look for a fault.
    pub fn server_info(&self) -> ServerInfo {
        self.0.session.backend.server_info()
    }

    /// After an operator took a grant away: how long it may take until the holder is told, if the holder's settings are
    /// those of this coordinator.
    ///
    /// On stores that notify, this is 50 ms after the store's notification. On ZooKeeper, 200 ms are added, in which a client
    /// whose session was ended connects again; each server that does not answer takes 1.5 s more, which is not included (see
    /// the page of ZooKeeper). On other stores, it is at most a heartbeat interval, as the granted lease allows it, plus the
    /// time that a heartbeat may take.
    ///
    /// Use it after breaking a lock, or after acquiring a lock that was broken, to let the former holder stop first.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// use std::time::Duration;
    ///
    /// let coordinator = coordination::Coordinator::connect("memory://?heartbeat=2s").await?;
    /// assert!(coordinator.loss_delay() >= Duration::from_secs(2));
    /// # Ok(()) }
    /// ```
    pub fn loss_delay(&self) -> Duration {
        self.0.session.loss_delay()
    }

    /// Ends the session. All guards are lost at once, and the store is asked to free what they held.
    ///
    /// Returns within the shorter of the lease and five seconds, plus 100 ms, even when the store is down.
    /// Stopping twice is harmless: the second call returns what the first one returned, or would have returned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`]: the store did not confirm the end of the session. What was held is free for others
    /// when the lease ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, stopping goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// coordinator.stop().await?;
    /// assert!(!guard.is_held());
    /// let error = coordinator.lock("vol-8")?.acquire(None).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    pub async fn stop(&self) -> Result<()> {
        self.0.session.check_process("stop")?;
        self.0.session.check_thread("stop")?;
        match &self.0.control {
            Some(control) => control.stop(&self.0.session).await,
            None => Ok(()),
        }
    }

    /// Waits until this coordinator is being stopped: from the first poll of [`stop_within`](Self::stop_within) on, and when it is closed in
    /// any other way.
    ///
    /// For whoever holds something that has no end of its own, such as a leadership or a slot: it would be waited for as long as
    /// `stop_within` allows, and then be cut off. A lost session is not the end; the coordinator opens the next one.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let leadership = coordinator.election("chief")?.campaign("one", None).await?;
    /// let leading = async {
    ///     tokio::select! {
    ///         lost = leadership.lost() => panic!("{lost:?}"),
    ///         () = coordinator.stopping() => {}
    ///     }
    ///     leadership.resign().await
    /// };
    ///
    /// let (stopped, resigned) =
    ///     tokio::join!(coordinator.stop_within(Duration::from_secs(20)), leading);
    /// resigned?;
    /// assert!(stopped.cut_off.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn stopping(&self) {
        let session = &self.0.session;
        // A forked child has no session. What waits in the parent must not be woken by a child that drops its copy.
        if session.is_own_process() {
            Unforked::new(Box::pin(session.stopping())).await;
        }
    }

    /// How much is held at this moment through this coordinator and its clones: locks, permits, slots, leaderships and claims of work.
    ///
    /// What [`stop_within`](Self::stop_within) would wait for. Memberships of groups do not count, as they say only that this process
    /// is there; neither does what was lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["vol-7", "vol-8"])?.acquire(None).await?;
    /// assert_eq!(coordinator.held(), 2);
    /// both.release().await?;
    /// assert_eq!(coordinator.held(), 0);
    /// # Ok(()) }
    /// ```
    pub fn held(&self) -> usize {
        // What a forked child has of its parent's is not the child's, and a thread of the parent may have locked it for ever.
        if self.0.session.is_own_process() { self.0.session.count_held() } else { 0 }
    }

    /// Stops in two steps, for a service that is told to end: gives out nothing new, lets what is held be finished for at most `limit`, and
    /// then does what [`stop`](Self::stop) does. Tells what was still held.
    ///
    /// From the first poll on every call that would acquire something fails with [`ErrorKind::Closed`], and so do those that wait:
    /// locks, permits, slots, candidacies, joins of groups, claims of work. What is held stays held, its heartbeats
    /// go on, and calls that give nothing out go on too: releases, acknowledgements, values, counters, rates, claims of a period. A holder that needs
    /// one more lock to finish does not get it.
    ///
    /// It stops as soon as [nothing is held](Self::held) and each release that was awaited is confirmed; so within `limit`, and the time that `stop` takes.
    /// It does not wait for memberships of groups; leave them before, if others are to know at once. Whoever holds a lock and awaits this
    /// call waits for itself: call it elsewhere.
    ///
    /// Called again it waits with the first call, and the shorter limit counts. [`stop`](Self::stop) does not wait, and ends the
    /// waiting of this call too. All of them end with the same list of what was cut off.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, all of this goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// use coordination::{Coordinator, ErrorKind};
    ///
    /// let coordinator = Coordinator::connect("memory://").await?;
    /// let (short, long) = (coordinator.lock("short")?, coordinator.lock("long")?);
    /// let (finishes, hangs) = (short.acquire(None).await?, long.acquire(None).await?);
    ///
    /// let stopping = coordinator.stop_within(Duration::from_millis(50));
    /// let (stopped, ()) = tokio::join!(stopping, async {
    ///     assert_eq!(short.acquire(None).await.unwrap_err().kind(), ErrorKind::Closed);
    ///     finishes.release().await.expect("it was held");
    /// });
    /// assert_eq!(stopped.cut_off.len(), 1);
    /// assert_eq!((stopped.cut_off[0].recipe, &*stopped.cut_off[0].name), ("lock", "long"));
    /// stopped.confirmed?;
    /// assert!(!hangs.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn stop_within(&self, limit: Duration) -> Stopped {
        let session = &self.0.session;
        let stopping = async {
            session.check_process("stop")?;
            session.check_thread("stop")?;
            match &self.0.control {
                Some(control) => control.stop_within(session, limit).await,
                None => Ok(()),
            }
        };
        let confirmed = stopping.await;
        Stopped { cut_off: session.cut_off(), confirmed }
    }
}

/// How a coordinator has stopped; returned by [`Coordinator::stop_within`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
///
/// let stopped = coordinator.stop_within(Duration::from_millis(10)).await;
/// for cut_off in &stopped.cut_off {
///     eprintln!("{} {} was not finished", cut_off.recipe, cut_off.name);
/// }
/// assert_eq!(stopped.cut_off[0].token, guard.token());
/// stopped.confirmed?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize)]
#[must_use = "it says what was cut off, and whether the store has confirmed the end"]
#[non_exhaustive]
pub struct Stopped {
    /// What was held when the time was over, in the order of its tokens.
    pub cut_off: Vec<CutOff>,
    /// What [`Coordinator::stop`] would have returned. Written with serde, it is nothing or the error's text, as `error`.
    #[serde(rename = "error", serialize_with = "serialize::confirmed::serialize")]
    pub confirmed: Result<()>,
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("store", &self.0.session.backend.scheme())
            .field("member_id", &self.member_id())
            .field("state", &self.0.session.state())
            .finish()
    }
}
