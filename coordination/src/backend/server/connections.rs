//! The connection of a process to a store: one for all calls, replaced when it fails or falls silent.
//!
//! A client crate spreads calls over all servers, or never notices that one has gone silent. So each server gets a
//! client of its own, which is used until a call fails on it or takes longer than a heartbeat may; then the next server
//! gets a fresh one. See [`rotation`](super::rotation).

#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use super::cause::{causes, connection_kind};
use super::credentials::{Access, Credentials};
use super::first::{self, First};
use super::rotation::{Attempt, Rotation, Turn};
use crate::config::Settings;
use crate::env::names;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::url::Host;

/// How often a server may close the connection before it has said a word.
const GREETINGS: usize = 5;
/// How long a refusal is believed: a server is asked at most twenty times a minute whether it lets us in.
const BELIEVED: Duration = Duration::from_secs(3);

/// How connections to a store's servers are made.
pub(crate) trait Link: Sized + Send + Sync + 'static {
    /// What calls are made on. It must not wait for the server by itself for ever: each use of it is bounded here.
    type Connection: Clone + Send + Sync + 'static;
    /// Why a call got no answer.
    type Failed: Send;

    /// How many calls may be under way at a time. A thousand at once take longer than the one that is timed may: each
    /// would be given up, the connection with it, and all would come again, for ever.
    const IN_FLIGHT: usize;
    /// What a URL has to say for TLS.
    const SECURE: &'static str;
    /// What to say where a server speaks TLS, and we do not.
    const WANTS_TLS: &'static str;

    /// How many hosts there are.
    fn hosts(&self) -> usize;

    /// The `nth` of them; `None`: whoever connects finds out where to.
    fn host(&self, nth: usize) -> Option<&Host>;

    /// The servers, for messages.
    fn shown(&self) -> String;

    /// Who we are there.
    fn access(&self) -> &Access;

    /// How long making another connection may take, where a call may take that long.
    fn longest(&self, patience: Duration) -> Duration;

    /// Makes a connection to the server whose turn it is, at the address of its place if it has one, and waits for its first
    /// answer. It fails where the server does not take these credentials, as far as that can be found out.
    fn connect(
        connections: &Arc<Connections<Self>>,
        turn: Turn,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// What a failed call says.
    fn explain(&self, operation: &'static str, failed: Self::Failed) -> Failure;
}

/// Why there is no connection, or no answer on it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection is of no use any longer.
    pub(crate) is_broken: bool,
    /// The server closed it without a word.
    pub(crate) is_hang_up: bool,
    /// The server takes no more connections, as far as that can be told.
    pub(crate) is_full: bool,
    /// The server has not said a word in time.
    pub(crate) is_late: bool,
    /// The server that it names in its place.
    pub(crate) moved_to: Option<String>,
}

/// A store's servers, and the connection in use.
pub(crate) struct Connections<L: Link> {
    pub(crate) link: L,
    pub(crate) rotation: Rotation<L::Connection>,
    /// A call that takes longer than this has found a silent connection.
    pub(crate) patience: Duration,
    in_flight: Semaphore,
    state: Mutex<State<L>>,
}

struct State<L: Link> {
    /// What becomes of the connection that is being made, if one is.
    making: Option<watch::Receiver<Option<Made<L>>>>,
    /// Why we are not let in, and until when that is believed.
    refused: Option<(Instant, Failure)>,
    /// Until there has been a connection.
    first: Option<First>,
}

/// A place among the calls that may be under way at once, and the connection on which to send the call.
pub(crate) struct Ready<'a, L: Link> {
    pub(crate) connections: &'a Connections<L>,
    pub(crate) operation: &'static str,
    connection: L::Connection,
    epoch: u64,
    _room: Option<SemaphorePermit<'a>>,
}

/// The place of the task that makes the connection for all: given back when this is dropped, however the task ends.
struct Place<L: Link> {
    connections: Arc<Connections<L>>,
    told: watch::Sender<Option<Made<L>>>,
}

/// What came of making a connection: with its epoch.
type Made<L> = Result<(<L as Link>::Connection, u64), Failure>;

impl<L: Link> Connections<L> {
    pub(crate) fn new(link: L, settings: &Settings, patience: Duration) -> Self {
        Self {
            rotation: Rotation::new(link.hosts(), settings, patience),
            link,
            patience,
            in_flight: Semaphore::new(L::IN_FLIGHT),
            state: Mutex::new(State { making: None, refused: None, first: Some(First::default()) }),
        }
    }

    /// The connection in use and its epoch, made if there is none.
    ///
    /// One task makes it for all, whoever of them gives up meanwhile, and not before the pause is over that follows when
    /// all servers have failed: a server that is down, or coming up, is not stormed (`R4`).
    pub(crate) async fn connection(self: &Arc<Self>) -> Made<L> {
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let mut made = self.making()?;
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        // Without an answer the runtime is going away.
        let gone = || Error::new(ErrorKind::Unavailable, "connect", "the runtime has ended");
        made.unwrap_or_else(|| Err(Failure::harmless(gone())))
    }

    /// [`connection`](Self::connection) to the first server that can be reached.
    pub(crate) async fn reach(self: &Arc<Self>) -> Made<L> {
        let mut tried = 0;
        loop {
            let outcome = self.connection().await;
            tried += 1;
            // There are more of them when a name was looked up.
            let is_one_left = tried < self.rotation.servers();
            match outcome {
                Err(failure) if failure.is_broken && is_one_left => {}
                outcome => return outcome,
            }
        }
    }

    /// [`reach`](Self::reach) for a call of this name.
    pub(crate) async fn reach_for(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<(L::Connection, u64)> {
        // Without a connection the call is not made: it has changed nothing.
        let not_made = |failure: Failure| failure.error.during(operation).with_effect(Effect::None);
        self.reach().await.map_err(not_made)
    }

    fn making(self: &Arc<Self>) -> Result<watch::Receiver<Option<Made<L>>>, Failure> {
        let mut state = self.state();
        if let Some((until, failure)) = &state.refused
            && Instant::now() < *until
        {
            return Err(failure.clone());
        }
        Ok(state.making.get_or_insert_with(|| self.start_making()).clone())
    }

    fn start_making(self: &Arc<Self>) -> watch::Receiver<Option<Made<L>>> {
        let (sender, made) = watch::channel(None);
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let place = Place { connections, told: sender };
            let outcome = place.connections.make().await;
            place.tell(outcome);
        });
        made
    }

    async fn make(self: &Arc<Self>) -> Made<L> {
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let turn = self.rotation.turn();
        if let Some(moment) = turn.pause_until {
            tokio::time::sleep_until(moment.into()).await;
        }
        let is_first = !self.has_connected();
        match self.make_there(turn).await {
            Ok(connection) => {
                self.state().first = None;
                self.rotation.install(connection.clone(), turn.epoch);
                Ok((connection, turn.epoch))
            }
            Err(failure) => {
                let failure = self.advised(failure);
                if failure.is_broken {
                    self.rotation.give_up(turn.epoch);
                }
                if failure.is_refusal() && !is_first {
                    self.state().refused = Some((Instant::now() + BELIEVED, failure.clone()));
                }
                Err(failure)
            }
        }
    }

    /// Makes a connection to the server whose turn it is, whose host's name is looked up before if it is to be.
    async fn make_there(self: &Arc<Self>, turn: Turn) -> Result<L::Connection, Failure> {
        if let (None, Some(host)) = (turn.place.address, self.link.host(turn.place.host)) {
            let limit = self.limit(|first| first.lookup(self.link.hosts()));
            let found = timeout(limit, names::addresses(&host.name, host.port.unwrap_or_default()));
            let found = found.await.map_err(|_| late(limit))?;
            self.rotation.found(turn.epoch, &found.map_err(|error| unknown(host, &error))?);
        }
        // It has an address now, unless the connection was given up meanwhile.
        let Turn { place, .. } = self.rotation.turn();
        let servers = self.rotation.servers();
        let limit = self.limit(|first| first.share(servers));
        let connecting = async {
            on_purpose("connecting");
            self.let_in(Turn { place, ..turn }).await
        };
        match timeout(limit, caught("connect", connecting)).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(panicked)) => Err(Failure::broken(panicked.with_effect(Effect::None))),
            Err(_) => Err(late(limit)),
        }
    }

    /// Makes a connection with the newest credentials, or where that fails, with those that a server took last.
    async fn let_in(self: &Arc<Self>, turn: Turn) -> Result<L::Connection, Failure> {
        let access = self.link.access();
        let newest = access.newest();
        let failure = match L::connect(self, turn, &newest).await {
            Ok(connection) => {
                access.let_in(&newest);
                return Ok(connection);
            }
            Err(failure) => failure,
        };
        // A server that refuses may just hang up.
        let is_there = !matches!(failure.error.kind(), ErrorKind::Refused | ErrorKind::Dns);
        let Some(other) = access.instead_of(&newest).filter(|_| is_there) else {
            return Err(failure);
        };
        let connection = L::connect(self, turn, &other).await.map_err(|_| failure)?;
        access.let_in(&other);
        Ok(connection)
    }

    /// How long a part of making a connection may take; of the first one, as long as this says.
    fn limit(&self, of_first: impl FnOnce(&mut First) -> Duration) -> Duration {
        let first = self.state().first.as_mut().map(of_first);
        first.unwrap_or_else(|| self.link.longest(self.patience))
    }

    /// Waits until fewer calls are under way than may be, and for a connection: nothing was sent so far.
    ///
    /// A call that is sent when no time is left for its answer leaves its caller in doubt, and costs a connection. It
    /// is refused before it is sent, and its caller comes again.
    pub(crate) async fn ready(self: &Arc<Self>, operation: &'static str) -> Result<Ready<'_, L>> {
        let room = timeout(self.patience / 2, self.in_flight.acquire()).await;
        let room = room.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation, "too many calls are under way")
        })?;
        // Never closed, so there is room.
        Ok(Ready { _room: room.ok(), ..self.urgent(operation).await? })
    }

    /// [`ready`](Self::ready) that waits for no other call, for heartbeats.
    pub(crate) async fn urgent(self: &Arc<Self>, operation: &'static str) -> Result<Ready<'_, L>> {
        let (connection, epoch) = self.reach_for(operation).await?;
        Ok(Ready { connections: self, operation, connection, epoch, _room: None })
    }

    /// Makes a call on the connection in use; if there is none, on the first server that can be reached.
    ///
    /// It is made once only: whoever repeats it has to know that it may have been carried out.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        operation: &'static str,
        call: impl FnOnce(L::Connection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        self.ready(operation).await?.make(call).await
    }

    /// [`call`](Self::call) that waits for no other, for heartbeats.
    pub(crate) async fn urgent_call<T, F>(
        self: &Arc<Self>,
        operation: &'static str,
        call: impl FnOnce(L::Connection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        self.urgent(operation).await?.make(call).await
    }

    /// Runs something on the connection of this epoch, which is judged by it as by a call.
    pub(crate) async fn on_epoch<T>(
        &self,
        operation: &'static str,
        epoch: u64,
        work: impl Future<Output = Result<T, L::Failed>>,
    ) -> Result<T> {
        let attempt = self.rotation.attempt(epoch);
        self.judged(operation, attempt, work).await.map_err(|failure| failure.error)
    }

    /// Runs something that a connection is judged by.
    pub(crate) async fn judged<T>(
        &self,
        operation: &'static str,
        attempt: Attempt<'_, L::Connection>,
        work: impl Future<Output = Result<T, L::Failed>>,
    ) -> Result<T, Failure> {
        let outcome = work.await.map_err(|failed| self.explained(operation, failed));
        match &outcome {
            // Another connection was refused: that says nothing of those that there are, and is no answer.
            Err(failure) if failure.is_full && !failure.is_broken => drop(attempt.unhurried()),
            outcome => {
                attempt.ended(outcome.as_ref().is_err_and(|failure| failure.is_broken));
            }
        }
        outcome.map_err(|failure| self.advised(failure))
    }

    /// What a failed call says. One that was refused may do better on a connection with other credentials, if there are some.
    fn explained(&self, operation: &'static str, failed: L::Failed) -> Failure {
        let failure = self.link.explain(operation, failed);
        if !failure.is_refusal() || !self.link.access().are_others() {
            return failure;
        }
        let message =
            "the server refuses us, and the files that the URL names hold other credentials now";
        let error = Error::new(ErrorKind::Unavailable, operation, message);
        let effect = failure.error.effect();
        Failure::broken(error.with_effect(effect).with_source(failure.error))
    }

    /// The first call of all: who is there? A server that is coming up, or has no leader yet, is asked again while there is
    /// time for that.
    pub(crate) async fn greet<T, F>(self: &Arc<Self>, ask: impl Fn(L::Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        let until = Instant::now() + first::LONGEST;
        let mut hang_ups = 0;
        while hang_ups < GREETINGS {
            let answered = match self.reach().await {
                Ok((connection, epoch)) => {
                    let attempt = self.rotation.attempt(epoch);
                    self.judged("connect", attempt, ask(connection)).await
                }
                Err(failure) => Err(failure),
            };
            match answered {
                // The alert that says why may have lost the race with the end of the connection.
                Err(failure) if failure.is_hang_up && !failure.is_full => hang_ups += 1,
                Err(failure) if failure.is_passing() && Instant::now() < until => {}
                Err(failure) => return Err(failure.error),
                Ok(answer) => return Ok(answer),
            }
        }
        let wanted = match self.link.access().is_secure() {
            true => "a client certificate (`cert`, `key`)".to_owned(),
            false => format!("TLS ({})", L::SECURE),
        };
        let message = format!("the server closes each connection at once: it may want {wanted}");
        Err(Error::new(ErrorKind::Tls, "connect", message))
    }

    /// With advice where the server speaks TLS, and we do not.
    fn advised(&self, failure: Failure) -> Failure {
        if failure.error.kind() != ErrorKind::Tls || self.link.access().is_secure() {
            return failure;
        }
        let advice = Error::new(ErrorKind::Tls, failure.error.operation(), L::WANTS_TLS);
        Failure { error: advice.with_source(failure.error), ..failure }
    }

    /// Whether there has been a connection.
    pub(crate) fn has_connected(&self) -> bool {
        self.state().first.is_none()
    }

    /// The servers, for messages.
    pub(crate) fn shown(&self) -> String {
        self.link.shown()
    }

    /// Told of every connection that is given up; its value is the epoch of the one in use.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.rotation.epochs()
    }

    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<L: Link> Place<L> {
    /// Gives the place back, and then tells those who wait: whoever comes again finds it free.
    fn tell(self, outcome: Made<L>) {
        let told = self.told.clone();
        drop(self);
        told.send_replace(Some(outcome));
    }
}

impl<L: Link> Drop for Place<L> {
    fn drop(&mut self) {
        self.connections.state().making = None;
    }
}

impl<L: Link> Ready<'_, L> {
    /// The connection's.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sends it.
    pub(crate) async fn make<T, F>(self, call: impl FnOnce(L::Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        self.connections.on_epoch(self.operation, self.epoch, call(self.connection)).await
    }

    /// Sends it another way: this connection is not judged by how that ends.
    pub(crate) async fn make_elsewhere<T, F>(
        self,
        call: impl FnOnce(L::Connection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        let (connections, operation) = (self.connections, self.operation);
        let outcome = call(self.connection).await;
        let outcome = outcome.map_err(|failed| connections.link.explain(operation, failed));
        outcome.map_err(|failure| connections.advised(failure).error)
    }
}

impl Failure {
    /// One that says nothing against the connection.
    pub(crate) fn harmless(error: Error) -> Self {
        Self {
            error,
            is_broken: false,
            is_hang_up: false,
            is_full: false,
            is_late: false,
            moved_to: None,
        }
    }

    pub(crate) fn broken(error: Error) -> Self {
        Self { is_broken: true, ..Self::harmless(error) }
    }

    /// There was no answer for so long.
    pub(crate) fn late(operation: &'static str, after: Duration, effect: Effect) -> Self {
        let message = format!("no answer within {after:?}");
        let error = Error::new(ErrorKind::Unavailable, operation, message);
        Self { is_late: true, ..Self::broken(error.with_effect(effect)) }
    }

    /// Whether the next try may do better, after the pause between connections.
    fn is_passing(&self) -> bool {
        self.is_broken && self.error.kind() == ErrorKind::Unavailable
    }

    /// Whether the server does not let us in: that seldom changes within a moment.
    fn is_refusal(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::Auth | ErrorKind::Permission)
    }
}

fn late(limit: Duration) -> Failure {
    Failure::late("connect", limit, Effect::None)
}

/// The host's name has no address, as far as anybody can tell. That of another host may have one.
fn unknown(host: &Host, error: &io::Error) -> Failure {
    let kind = connection_kind(&causes(Some(error)));
    Failure::broken(Error::new(kind, "connect", format!("{}: {error}", host.name)))
}
