//! A store and a coordinator for one test, and what can go wrong with them.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rand::RngExt;

use super::{Entered, Scope};
use crate::backend::memory;
use crate::blocking;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::env;
use crate::error::{LossReason, Result};
use crate::recipe::in_use::Recipe;
use crate::session::Session;

/// An empty `memory://` store that nobody else can name by chance, a coordinator on it, and a [`Scope`] in which that is the global
/// one. Cheap to clone.
///
/// Its session runs on a thread of its own and on real time, whatever the test does with its runtime. A test that pauses tokio's
/// clock makes it [`on_this_runtime`](Self::on_this_runtime) instead.
///
/// # Examples
///
/// ```
/// use coordination::testing::Sandbox;
/// use coordination::{Effect, ErrorKind, synchronized};
///
/// #[synchronized("report")]
/// async fn write_report() -> coordination::Result<()> {
///     std::future::pending().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let sandbox = Sandbox::new()?;
/// let _entered = sandbox.enter();
/// let writing = tokio::spawn(write_report());
/// while sandbox.coordinator().lock("report")?.holders().await?.is_empty() {}
///
/// sandbox.lose_session();
/// let error = writing.await.unwrap().unwrap_err();
/// assert_eq!((error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

struct Inner {
    url: String,
    config: Config,
    coordinator: Coordinator,
    scope: Scope,
    store: Arc<memory::Store>,
    /// Those of all coordinators that were made here.
    sessions: Mutex<Vec<Weak<Session>>>,
}

impl Sandbox {
    /// A sandbox whose session runs on a thread of its own. It may be made within a runtime, or outside of one for tests of blocking
    /// code.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Storage`](crate::ErrorKind::Storage): the process may have no more threads.
    pub fn new() -> Result<Self> {
        blocking::wait(Self::connect(Config::default()))
    }

    /// A sandbox whose sessions run on the current runtime and on its clock: for tests that
    /// [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html) that clock. With any other sandbox, tokio would take a test
    /// that waits for a lock for idle, and turn its clock forward.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::testing::Sandbox;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> coordination::Result<()> {
    /// let sandbox = Sandbox::on_this_runtime().await?;
    /// let lock = sandbox.coordinator().lock("vol-7")?;
    /// let held = lock.acquire(None).await?;
    /// // An hour that takes no time.
    /// assert!(lock.acquire(Some(Duration::from_secs(3_600))).await.is_err());
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    pub async fn on_this_runtime() -> Result<Self> {
        let config = Config { heartbeat_on_current_runtime: true, ..Config::default() };
        Self::connect(config).await
    }

    /// A sandbox with other settings: a prefix, a member id, a heartbeat. Its URL is set by the sandbox. Unless
    /// [`Config::heartbeat_on_current_runtime`] is set, its sessions run on threads of their own.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn with(config: Config) -> Result<Self> {
        Self::connect(config).await
    }

    async fn connect(mut config: Config) -> Result<Self> {
        let name = format!("sandbox-{:032x}", env::rng().random::<u128>());
        let url = format!("memory://{name}");
        config.url = Some(url.clone());
        let coordinator = open(&config).await?;
        let store = memory::store(&name, &coordinator.session().settings.namespace);
        let scope = Scope::of(&coordinator);
        let sessions = Mutex::new(vec![Arc::downgrade(coordinator.session())]);
        Ok(Self(Arc::new(Inner { url, config, coordinator, scope, store, sessions })))
    }

    /// Its coordinator, the global one in its scope.
    pub fn coordinator(&self) -> &Coordinator {
        &self.0.coordinator
    }

    /// One more coordinator on the same store, with the same settings but a member id of its own: what another process would have.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn another(&self) -> Result<Coordinator> {
        let other = open(&Config { member_id: None, ..self.0.config.clone() }).await?;
        self.sessions().push(Arc::downgrade(other.session()));
        Ok(other)
    }

    /// The URL of its store, for code under test that connects by itself. As with every `memory://` URL, such a session runs on the
    /// runtime that connects.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The scope in which its coordinator is the global one.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// [`Scope::enter`] of its scope.
    pub fn enter(&self) -> Entered {
        self.0.scope.enter()
    }

    /// [`Scope::run`] in its scope.
    ///
    /// # Cancel safety
    ///
    /// That of the future.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.scope.run(future)
    }

    /// Ends its coordinator's session at the store, as after a network outage that was longer than the lease: the reason is
    /// [`LossReason::ExpiredByServer`](crate::LossReason::ExpiredByServer).
    ///
    /// On return all its guards are lost, and others may have what they held. The coordinator opens a new session by itself, at once
    /// if the store [can be reached](Self::set_reachable). If it was stopped, or has no session now, nothing happens.
    pub fn lose_session(&self) {
        if let Some(lease) = self.0.coordinator.session().lease_now() {
            // In this order, so that nobody is granted what a guard still says that it holds.
            lease.lose(LossReason::ExpiredByServer);
            self.0.store.close(lease.id);
        }
    }

    /// Removes from the store what holds the name, as an operator may: of a lock the holder's entry, or the first one of several; of
    /// other recipes the entry that is there for longest. The reason is
    /// [`LossReason::EntryDeleted`](crate::LossReason::EntryDeleted). False: nobody has the name.
    ///
    /// On return the guard is lost, if it is of this sandbox's coordinator or of [`another`](Self::another); who has connected
    /// by [`url`](Self::url) is told with its next heartbeat.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): the name is empty or too long.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::testing::Sandbox;
    /// use coordination::{LossReason, Recipe};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let sandbox = Sandbox::new()?;
    /// let guard = sandbox.coordinator().lock("vol-7")?.acquire(None).await?;
    /// assert!(sandbox.delete_entry(Recipe::Lock, "vol-7")?);
    /// assert_eq!(guard.lost().await, LossReason::EntryDeleted);
    /// # Ok(()) }
    /// ```
    pub fn delete_entry(&self, recipe: Recipe, name: &str) -> Result<bool> {
        let queue = self.0.coordinator.queue_of(recipe.kind(), name)?;
        let Some(id) = self.0.store.delete_first(&queue.key) else { return Ok(false) };
        let sessions: Vec<_> = self.sessions().iter().filter_map(Weak::upgrade).collect();
        for lease in sessions.iter().filter_map(|session| session.lease_now()) {
            lease.entry_lost(&id);
        }
        Ok(true)
    }

    /// Whether the store answers: false, and it does not until the next call with true.
    ///
    /// Meanwhile calls to it fail as if nobody listened at its address: new acquires wait, until their time is over or the store
    /// is back; coordinators are [`Suspended`](crate::State::Suspended) from their next heartbeat on. What is held stays held
    /// for as long as that takes, because `memory://` has no lease; [`lose_session`](Self::lose_session) says that it was over.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    /// use coordination::testing::Sandbox;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let sandbox = Sandbox::new()?;
    /// let lock = sandbox.coordinator().lock("vol-7")?;
    /// sandbox.set_reachable(false);
    /// let error = lock.acquire(Some(Duration::from_millis(50))).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    /// sandbox.set_reachable(true);
    /// assert!(lock.acquire(None).await?.is_held());
    /// # Ok(()) }
    /// ```
    pub fn set_reachable(&self, yes: bool) {
        self.0.store.set_reachable(yes);
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects on a thread of the session's own, or on the current runtime if that is wanted.
async fn open(config: &Config) -> Result<Coordinator> {
    let connecting = config.clone().connect();
    match config.heartbeat_on_current_runtime {
        true => connecting.await,
        // Who blocks its thread gets a session on another one.
        false => blocking::wait(connecting),
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("url", &self.0.url)
            .field("coordinator", &self.0.coordinator)
            .finish()
    }
}
