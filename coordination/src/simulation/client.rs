//! A client: stands for a process, and has clocks of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::run::{nanos, with};
use super::server::{Traits, World};
use crate::backend::SessionId;
use crate::canary::{Canary, sings};
use crate::{Config, Coordinator, Result};

/// How a client's clocks differ from the store's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// What the client's clock since boot showed when the run began, in nanoseconds.
    pub boot: u64,
    /// How much faster the client's clock since boot runs, in millionths; A1 allows 5,000 either way.
    pub faster_ppm: i64,
    /// How far the client's wall clock is ahead, in microseconds.
    pub wall_ahead: i64,
}

/// What passes between a client and the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// No request arrives.
    pub requests_cut: bool,
    /// No reply and no notification arrives.
    pub replies_cut: bool,
    /// No heartbeat arrives, and everything else does: as at a server that is cut off from its leader.
    pub heartbeats_cut: bool,
}

/// A client process.
pub struct Client {
    world: World,
    clocks: Clocks,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    link: Link,
    is_paused: bool,
    is_dead: bool,
    /// For how many nanoseconds of the run the client has been suspended, not counting a suspend that has not ended.
    suspended: u64,
    suspended_since: Option<u64>,
    /// The client's sessions. If the store is within the client's host, they end when the client is killed.
    sessions: Vec<SessionId>,
    /// Wakers of the tasks that were polled during the pause.
    parked: Vec<Waker>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("clocks", &self.clocks).finish_non_exhaustive()
    }
}

impl World {
    /// A new store on a server that has a clock and reports changes, and one client, which is connected with this lease.
    ///
    /// # Errors
    ///
    /// Those of [`Coordinator::connect`].
    pub async fn with_one_client(ttl: Duration) -> Result<(Self, Arc<Client>, Coordinator)> {
        let world = Self::new(1, Traits::SERVER);
        let client = world.client(Clocks::default());
        let config = Config { ttl: Some(ttl), ..Config::default() };
        let coordinator = client.connect(config).await?;
        Ok((world, client, coordinator))
    }

    /// A new client of this store.
    pub fn client(&self, clocks: Clocks) -> Arc<Client> {
        Arc::new(Client { world: self.clone(), clocks, state: Mutex::default() })
    }
}

impl Client {
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Connects a coordinator of this client.
    ///
    /// # Errors
    ///
    /// Those of [`Coordinator::connect`].
    pub async fn connect(self: &Arc<Self>, config: Config) -> Result<Coordinator> {
        let connecting = crate::builder::Builder::from(config).connect("simulation://");
        Within::new(Some(Arc::clone(self)), connecting).await
    }

    /// Starts a task of this client.
    pub fn spawn<F>(self: &Arc<Self>, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        tokio::spawn(Within::new(Some(Arc::clone(self)), task))
    }

    /// Runs `work` as this client: by the client's clocks, and on its connection to the store.
    pub fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _inside = Inside::of(Some(Arc::clone(self)));
        work()
    }

    /// Pauses the client: none of its tasks is polled.
    pub fn pause(&self) {
        self.state().is_paused = true;
    }

    /// Suspends the client's machine: none of its tasks is polled, and its clock that does not count suspend stops.
    pub fn suspend(&self) {
        let mut state = self.state();
        state.is_paused = true;
        state.suspended_since.get_or_insert(nanos());
    }

    /// Lets the client's tasks go on, after a pause or a suspend.
    pub fn resume(&self) {
        let mut state = self.state();
        state.is_paused = false;
        if let Some(since) = state.suspended_since.take() {
            state.suspended += nanos() - since;
        }
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        parked.into_iter().for_each(Waker::wake);
    }

    /// Kills the client: nothing that it does afterwards, destructors included, reaches the store. A store within the client's host
    /// notices the death at once.
    pub fn crash(&self) {
        self.state().is_dead = true;
        self.resume();
        if !self.world.traits().is_remote {
            let sessions = std::mem::take(&mut self.state().sessions);
            sessions.into_iter().for_each(|session| self.world.end(session));
        }
    }

    pub(super) fn has_opened(&self, session: SessionId) {
        self.state().sessions.push(session);
    }

    /// Whether the client was killed.
    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Whether the client is paused or suspended.
    pub fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// What passes between the client and the store.
    pub fn link(&self) -> Link {
        self.state().link
    }

    /// Changes what passes between the client and the store.
    pub fn set_link(&self, link: Link) {
        self.state().link = link;
    }

    /// What the client's clock since boot shows when the run has taken `elapsed` nanoseconds.
    pub fn boot_nanos(&self, elapsed: u64) -> u64 {
        let mut elapsed = i128::from(elapsed);
        if sings(Canary::ClockStopsInSuspend) {
            let state = self.state();
            let now = state.suspended_since.map_or(0, |since| elapsed - i128::from(since));
            elapsed -= i128::from(state.suspended) + now;
        }
        let shown = elapsed + elapsed * i128::from(self.clocks.faster_ppm) / 1_000_000;
        self.clocks.boot + u64::try_from(shown).unwrap_or_default()
    }

    /// The client's host: clients whose clocks show the same are on one host.
    pub(super) fn host(&self) -> u64 {
        self.clocks.boot ^ self.clocks.faster_ppm.cast_unsigned().rotate_left(32)
    }

    pub(super) fn wall_micros(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.clocks.wall_ahead)
    }
}

/// While this exists, its client is the one that is running. When it is dropped, the client that was running before is again.
struct Inside(Option<Arc<Client>>);

impl Inside {
    fn of(client: Option<Arc<Client>>) -> Self {
        Self(with(|run| std::mem::replace(&mut run.client, client)).flatten())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Dropped after `with` has returned, because dropping a client may call `with` again.
        let inner = with(|run| std::mem::replace(&mut run.client, self.0.take()));
        drop(inner);
    }
}

/// A task of a client. It is polled and dropped while that client is the one that is running.
pub(super) struct Within<F> {
    client: Option<Arc<Client>>,
    /// `None` once it has ended, or its client has died.
    task: Option<Pin<Box<F>>>,
}

impl<F> Within<F> {
    pub(super) fn new(client: Option<Arc<Client>>, task: F) -> Self {
        Self { client, task: Some(Box::pin(task)) }
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _inside = Inside::of(this.client.clone());
        if let Some(client) = &this.client {
            let mut state = client.state();
            if state.is_dead {
                drop(state);
                this.task = None;
                return Poll::Pending;
            }
            if state.is_paused {
                state.parked.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        match &mut this.task {
            Some(task) => task.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Within<F> {
    fn drop(&mut self) {
        let _inside = Inside::of(self.client.clone());
        self.task = None;
    }
}
