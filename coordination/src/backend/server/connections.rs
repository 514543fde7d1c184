//! The connection of a process to a store: one for all calls, replaced when it fails or when the server stops answering.
//!
//! A client crate that knows all servers spreads calls over them, or does not notice that a server has stopped answering. So a
//! client is made for one server only. It is used until a call fails on it or takes longer than a heartbeat may; then another
//! client is made for the next server. See [`rotation`](super::rotation).

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use super::cause::{causes, connection_kind};
use super::credentials::{Access, Credentials};
use super::first::{self, First};
use super::places::Place;
use super::rotation::{Attempt, Rotation, Turn};
use crate::config::Settings;
use crate::env::names;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::url::Host;

/// How often the first call is tried on servers that close each connection without an answer.
const GREETINGS: usize = 5;
/// After a server has refused our credentials: how long calls fail with that refusal, without another try. So a server is tried
/// at most twenty times a minute.
const BELIEVED: Duration = Duration::from_secs(3);

/// How connections to a store's servers are made.
pub(crate) trait Link: Sized + Send + Sync + 'static {
    /// The client crate's handle of a connection, on which calls are made. A call need not have a time limit: callers drop the call
    /// when its time is over.
    type Connection: Clone + Send + Sync + 'static;
    /// The error with which the client crate answers a failed call.
    type Failed: Send;

    /// How many calls may be in flight at a time. If a thousand were sent at the same time, the server would take longer over them
    /// than each call may take: all would be dropped, the connection would be given up, and the retries of all calls would fail in
    /// the same way.
    const IN_FLIGHT: usize;
    /// The scheme of URLs with TLS, for messages.
    const SECURE: &'static str;
    /// The advice for a URL without TLS whose server speaks TLS.
    const WANTS_TLS: &'static str;

    /// How many hosts the URL has.
    fn hosts(&self) -> usize;

    /// The host with the index `nth` in the URL. `None`: the URL names no hosts to which to connect, and [`connect`](Self::connect)
    /// itself finds out where they are.
    fn host(&self, nth: usize) -> Option<&Host>;

    /// The servers, for messages.
    fn shown(&self) -> String;

    /// Our credentials, and the certificates that we trust.
    fn access(&self) -> &Access;

    /// How long making another connection may take, if a call may take `patience`.
    fn longest(&self, patience: Duration) -> Duration;

    /// Connects to the server that `turn` names, at the address in `turn` if there is one, and waits for the server's first answer.
    /// Fails if the server refuses these credentials; but some servers refuse them only at the first call.
    fn connect(
        connections: &Arc<Connections<Self>>,
        turn: Turn,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Translates the client crate's error: the error for the caller, and whether the connection can still be used.
    fn explain(&self, operation: &'static str, failed: Self::Failed) -> Failure;
}

/// Why a connection could not be made, or a call on it failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection cannot be used any more, and another one is to be made.
    pub(crate) is_broken: bool,
    /// The server closed the connection without an answer.
    pub(crate) is_hang_up: bool,
    /// The server seems to take no more connections.
    pub(crate) is_full: bool,
    /// The server did not answer in time.
    pub(crate) is_late: bool,
    /// The address of another server, if the answer says that the call has to be sent there.
    pub(crate) moved_to: Option<String>,
}

/// A store's servers, and the connection in use.
pub(crate) struct Connections<L: Link> {
    pub(crate) link: L,
    pub(crate) rotation: Rotation<L::Connection>,
    /// If a call is dropped after it has waited for at least this long, and its connection has given no answer in that time, the
    /// connection is given up.
    pub(crate) patience: Duration,
    in_flight: Semaphore,
    state: Mutex<State<L>>,
}

struct State<L: Link> {
    /// `Some` while a task makes a connection: all callers wait for the outcome of that one task.
    making: Option<watch::Receiver<Option<Made<L>>>>,
    /// The servers that refused us: until when each of them is not asked again, and why it refused. Until then only other servers
    /// are asked.
    refused: HashMap<Place, (Instant, Failure)>,
    /// Why the servers refused us, if all that were known did, and until when none of them is asked again.
    all_refused: Option<(Instant, Failure)>,
    /// The time that is left for the first connection; `None` once there has been one.
    first: Option<First>,
}

/// A slot among the calls that may be in flight at the same time, and the connection on which to send the call.
pub(crate) struct Ready<'a, L: Link> {
    pub(crate) connections: &'a Connections<L>,
    pub(crate) operation: &'static str,
    connection: L::Connection,
    epoch: u64,
    /// `None`: the call was [`urgent`](Connections::urgent), and needs no slot.
    _room: Option<SemaphorePermit<'a>>,
}

/// Held by the one task that makes a connection for all callers. When it is dropped, the next caller may start another task; so
/// it is dropped however the task ends: with an outcome, by a panic, or with the runtime.
struct Maker<L: Link> {
    connections: Arc<Connections<L>>,
    told: watch::Sender<Option<Made<L>>>,
}

/// The outcome of making a connection: the connection and its epoch, or why there is none.
type Made<L> = Result<(<L as Link>::Connection, u64), Failure>;

impl<L: Link> Connections<L> {
    pub(crate) fn new(link: L, settings: &Settings, patience: Duration) -> Self {
        Self {
            rotation: Rotation::new(link.hosts(), settings, patience),
            link,
            patience,
            in_flight: Semaphore::new(L::IN_FLIGHT),
            state: Mutex::new(State {
                making: None,
                refused: HashMap::new(),
                all_refused: None,
                first: Some(First::default()),
            }),
        }
    }

    /// The connection in use and its epoch; makes one if there is none.
    ///
    /// One task makes the connection for all callers, and goes on if any of them gives up. When all servers have failed, the task
    /// first waits until the pause is over: otherwise all clients together would flood a server that is down or starting (`R4`).
    pub(crate) async fn connection(self: &Arc<Self>) -> Made<L> {
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let mut made = self.making()?;
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        // There is no outcome, because the task ended without one: the runtime is shutting down.
        let gone = || Error::new(ErrorKind::Unavailable, "connect", "the runtime has ended");
        made.unwrap_or_else(|| Err(Failure::harmless(gone())))
    }

    /// [`connection`](Self::connection), tried with one server after the other until one can be reached.
    ///
    /// Of several errors, one that may pass by itself is answered rather than a refusal: the caller goes on trying then, and a
    /// server that is starting now may let us in. Not so before the first connection: who has just given a wrong password is to
    /// be told.
    pub(crate) async fn reach(self: &Arc<Self>) -> Made<L> {
        let (mut tried, mut passing) = (0, None);
        loop {
            let outcome = self.connection().await;
            tried += 1;
            // Looking up a host's name may have added servers, so the number is read after each try.
            let is_one_left = tried < self.rotation.servers();
            match outcome {
                Err(failure) if failure.is_broken && is_one_left => {
                    passing = Some(failure).filter(Failure::is_passing).or(passing);
                }
                Err(failure) if failure.is_refusal() && self.has_connected() => {
                    return Err(passing.unwrap_or(failure));
                }
                outcome => return outcome,
            }
        }
    }

    /// [`reach`](Self::reach); an error names this operation.
    pub(crate) async fn reach_for(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<(L::Connection, u64)> {
        // The call was not sent, so it has had no effect.
        let not_made = |failure: Failure| failure.error.during(operation).with_effect(Effect::None);
        self.reach().await.map_err(not_made)
    }

    /// The outcome of the task that makes a connection; starts one if there is none.
    ///
    /// The mutex makes sure that callers who come at the same time find the same task. A caller may have seen no connection just
    /// before the running task installed one, and come here after that task has ended. Then it starts another task, which finds
    /// that connection and makes none.
    fn making(self: &Arc<Self>) -> Result<watch::Receiver<Option<Made<L>>>, Failure> {
        let mut state = self.state();
        if let Some((until, failure)) = &state.all_refused
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
            let maker = Maker { connections, told: sender };
            let outcome = maker.connections.make().await;
            maker.tell(outcome);
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
                Err(failure)
            }
        }
    }

    /// Makes a connection to the server whose turn it is. If its host's name has to be looked up, does that first.
    async fn make_there(self: &Arc<Self>, turn: Turn) -> Result<L::Connection, Failure> {
        if let (None, Some(host)) = (turn.place.address, self.link.host(turn.place.host)) {
            let limit = self.limit(|first| first.lookup(self.link.hosts()));
            let found = timeout(limit, names::addresses(&host.name, host.port.unwrap_or_default()));
            let found = found.await.map_err(|_| late(limit))?;
            self.rotation.found(turn.epoch, &found.map_err(|error| unknown(host, &error))?);
        }
        // The turn is read again, because its place has an address now. If the epoch was given up during the lookup, this is the
        // place for the next epoch. Then the connection that is made has an old epoch, and is not installed.
        let Turn { place, .. } = self.rotation.turn();
        let servers = self.rotation.servers();
        let limit = self.limit(|first| first.share(servers));
        let connecting = async {
            on_purpose("connecting");
            self.let_in(Turn { place, ..turn }).await
        };
        if let Some(failure) = self.refused_by(place) {
            return Err(failure);
        }
        let connected = match timeout(limit, caught("connect", connecting)).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(panicked)) => Err(Failure::broken(panicked.with_effect(Effect::None))),
            Err(_) => Err(late(limit)),
        };
        if let Err(failure) = &connected
            && failure.is_refusal()
            && self.has_connected()
        {
            self.note_refusal(place, failure);
        }
        connected
    }

    fn note_refusal(&self, place: Place, failure: &Failure) {
        let now = Instant::now();
        let mut state = self.state();
        state.refused.retain(|_, (until, _)| now < *until);
        state.refused.insert(place, (now + BELIEVED, failure.clone()));
        // Asked now, as the addresses of a name are forgotten when all servers have failed, and one of them may have let us in.
        if self.rotation.all(|place| state.refused.contains_key(place)) {
            state.all_refused = state.refused.values().min_by_key(|(until, _)| *until).cloned();
        }
    }

    /// Why this server refused us a moment ago, if it did.
    fn refused_by(&self, place: Place) -> Option<Failure> {
        let state = self.state();
        let refused = state.refused.get(&place).filter(|(until, _)| Instant::now() < *until);
        refused.map(|(_, failure)| failure.clone())
    }

    /// Makes a connection with the newest credentials. If that fails, tries those with which a server last accepted us.
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
        // Some servers just close the connection if they refuse the credentials. So every failure may be such a refusal, unless
        // nobody listens there or the host has no address.
        let is_there = !matches!(failure.error.kind(), ErrorKind::Refused | ErrorKind::Dns);
        let Some(other) = access.instead_of(&newest).filter(|_| is_there) else {
            return Err(failure);
        };
        let connection = L::connect(self, turn, &other).await.map_err(|_| failure)?;
        access.let_in(&other);
        Ok(connection)
    }

    /// How long one step (a lookup, a connect) may take: what `of_first` says while the first connection is being made, and
    /// [`Link::longest`] later.
    fn limit(&self, of_first: impl FnOnce(&mut First) -> Duration) -> Duration {
        let first = self.state().first.as_mut().map(of_first);
        first.unwrap_or_else(|| self.link.longest(self.patience))
    }

    /// Waits for a slot among the calls in flight, and for a connection. Nothing has been sent when this returns.
    ///
    /// If no slot is free within half of the patience, the call fails without having been sent, and its caller tries again. If it
    /// were sent with too little time left for its answer, the caller would not know whether it took effect, and the connection
    /// would be given up.
    pub(crate) async fn ready(self: &Arc<Self>, operation: &'static str) -> Result<Ready<'_, L>> {
        let room = timeout(self.patience / 2, self.in_flight.acquire()).await;
        let room = room.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation, "too many calls are under way")
        })?;
        // The semaphore is never closed, so this is a permit.
        Ok(Ready { _room: room.ok(), ..self.urgent(operation).await? })
    }

    /// [`ready`](Self::ready) without a slot, so that a heartbeat never waits for other calls.
    pub(crate) async fn urgent(self: &Arc<Self>, operation: &'static str) -> Result<Ready<'_, L>> {
        let (connection, epoch) = self.reach_for(operation).await?;
        Ok(Ready { connections: self, operation, connection, epoch, _room: None })
    }

    /// Makes a call on the connection in use; if there is none, on the first server that can be reached.
    ///
    /// The call is sent only once. It may have been carried out although it failed, so only the caller can decide whether to
    /// repeat it.
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

    /// [`call`](Self::call) without a slot, so that a heartbeat never waits for other calls.
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

    /// Runs `work`, which is a call on the connection of this epoch. If the outcome shows that the connection is broken, or
    /// `work` is dropped after too long a time without any answer, the connection is given up.
    pub(crate) async fn on_epoch<T>(
        &self,
        operation: &'static str,
        epoch: u64,
        work: impl Future<Output = Result<T, L::Failed>>,
    ) -> Result<T> {
        let attempt = self.rotation.attempt(epoch);
        self.judged(operation, attempt, work).await.map_err(|failure| failure.error)
    }

    /// Runs `work`, and reports to the rotation whether the connection of `attempt` is broken.
    pub(crate) async fn judged<T>(
        &self,
        operation: &'static str,
        attempt: Attempt<'_, L::Connection>,
        work: impl Future<Output = Result<T, L::Failed>>,
    ) -> Result<T, Failure> {
        let outcome = work.await.map_err(|failed| self.explained(operation, failed));
        match &outcome {
            // The server refused to accept one more connection. That is neither a failure of the connection in use nor an answer
            // on it, so nothing is reported.
            Err(failure) if failure.is_full && !failure.is_broken => drop(attempt.unhurried()),
            outcome => {
                attempt.ended(outcome.as_ref().is_err_and(|failure| failure.is_broken));
            }
        }
        outcome.map_err(|failure| self.advised(failure))
    }

    /// Translates the error of a failed call. If the server refused our credentials, and the files that the URL names hold other
    /// credentials by now, the connection counts as broken, so that the next one is made with the new credentials.
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

    /// Makes the first call of the process, which asks for the server's version, for instance. The server may be starting, or
    /// have no leader yet: then the call is repeated for up to [`first::LONGEST`].
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
                // The server may have sent a TLS alert with the reason just before it closed the connection, and the alert may have
                // been lost. So try again: at the next try, the alert may arrive.
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

    /// Adds advice to the error if the server speaks TLS and the URL does not.
    fn advised(&self, failure: Failure) -> Failure {
        if failure.error.kind() != ErrorKind::Tls || self.link.access().is_secure() {
            return failure;
        }
        let advice = Error::new(ErrorKind::Tls, failure.error.operation(), L::WANTS_TLS);
        Failure { error: advice.with_source(failure.error), ..failure }
    }

    /// Whether there has ever been a connection.
    pub(crate) fn has_connected(&self) -> bool {
        self.state().first.is_none()
    }

    /// The servers, for messages.
    pub(crate) fn shown(&self) -> String {
        self.link.shown()
    }

    /// Changes with every connection that is given up; the value is the epoch of the connection in use.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.rotation.epochs()
    }

    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<L: Link> Maker<L> {
    /// First drops this `Maker`, so that another task may be started, and then gives the outcome to the callers who wait. In the
    /// other order, a caller who gets a failure and comes again at once would find this task's outcome, and get the same failure
    /// without a new try.
    fn tell(self, outcome: Made<L>) {
        let told = self.told.clone();
        drop(self);
        told.send_replace(Some(outcome));
    }
}

impl<L: Link> Drop for Maker<L> {
    fn drop(&mut self) {
        self.connections.state().making = None;
    }
}

impl<L: Link> Ready<'_, L> {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sends the call. If its outcome shows that the connection is broken, the connection is given up.
    pub(crate) async fn make<T, F>(self, call: impl FnOnce(L::Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, L::Failed>>,
    {
        self.connections.on_epoch(self.operation, self.epoch, call(self.connection)).await
    }

    /// Like [`make`](Self::make), for a call that is sent on another connection: whatever its outcome, the connection in use
    /// stays.
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
    /// A failure after which the connection can still be used.
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

    /// The failure of a call that was not answered within the time `after`.
    pub(crate) fn late(operation: &'static str, after: Duration, effect: Effect) -> Self {
        let message = format!("no answer within {after:?}");
        let error = Error::new(ErrorKind::Unavailable, operation, message);
        Self { is_late: true, ..Self::broken(error.with_effect(effect)) }
    }

    /// Whether a next try may succeed, after the pause between connections.
    fn is_passing(&self) -> bool {
        self.is_broken && self.error.kind() == ErrorKind::Unavailable
    }

    /// Whether the server refuses our credentials or our rights. Another try right away would most likely be refused too.
    fn is_refusal(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::Auth | ErrorKind::Permission)
    }
}

fn late(limit: Duration) -> Failure {
    Failure::late("connect", limit, Effect::None)
}

/// The failure if a host's name cannot be looked up. It is `broken`, so that the next host is tried, whose name may have an
/// address.
fn unknown(host: &Host, error: &io::Error) -> Failure {
    let kind = connection_kind(&causes(Some(error)));
    Failure::broken(Error::new(kind, "connect", format!("{}: {error}", host.name)))
}
