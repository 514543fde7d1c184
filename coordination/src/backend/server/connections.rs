//! The connection of a process to a store: one for all calls, replaced when it fails or when the server stops answering.
//!
//! If a store's client crate knew all servers, it would spread calls over them, or would not notice that a server has stopped
//! answering. So this module makes a client for one server only. That client is used until its connection breaks, or until a call
//! on it takes longer than a heartbeat may take. Then a client for the next server is made. The module
//! [`rotation`](super::rotation) decides which server is the next.
//!
//! | what a store wants to do | with |
//! | --- | --- |
//! | make the first call of the process | [`Connections::greet`] |
//! | make a call | [`Connections::call`] |
//! | make a call that is part of a heartbeat, which waits for no other call | [`Connections::urgent_call`] |
//! | make a call that finds out whether something was lost | [`Connections::ready_soon`], then [`Ready::make`] |
//! | do something between getting a slot for a call and sending it | [`Connections::ready`] or [`Connections::urgent`], then [`Ready::make`] |
//! | send a call to another server than the one in use | the same, then [`Ready::make_elsewhere`] |
//! | keep a stream open, which is no call and needs no slot | [`Connections::reach_for`], then [`Connections::on_epoch`] for each of its steps |
//! | the same, where a late answer says nothing about the connection | [`Connections::reach_for`], then [`Connections::judged`] |
//! | hear that the connection was replaced | [`Connections::epochs`] |

mod failure;
mod refusals;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use super::credentials::{Access, Credentials};
use super::first::{self, First};
use super::rotation::{Attempt, Rotation, Turn};
use crate::config::Settings;
use crate::env::names;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::url::Host;

pub(crate) use self::failure::Failure;
use self::failure::{late, unknown};
use self::refusals::Refusals;

/// How often [`greet`](Connections::greet) tries the first call of the process if each try ends with a connection that the server
/// closes without an answer.
const GREETINGS: usize = 5;

/// How connections to a store's servers are made.
pub(crate) trait Link: Sized + Send + Sync + 'static {
    /// The client crate's handle of a connection, on which calls are made. The handle need not limit the time of a call: the
    /// callers drop a call when its time is over.
    type Connection: Clone + Send + Sync + 'static;
    /// The client crate's error for a failed call.
    type Failed: Send;

    /// How many calls may be in flight at the same time. If a thousand calls were sent at the same time, the server would need more
    /// time for all of them than each call may take. The callers would drop the calls, the connection would be given up, and the
    /// retries would fail in the same way.
    const IN_FLIGHT: usize;
    /// What a URL must have so that TLS is used, for messages: a scheme or an option.
    const SECURE: &'static str;
    /// The advice to the user in the error if the server speaks TLS, and the URL does not ask for TLS.
    const WANTS_TLS: &'static str;

    /// How many hosts the URL has.
    fn hosts(&self) -> usize;

    /// The host with the index `nth` in the URL, whose name is looked up before [`connect`](Self::connect) is called. `None`: no
    /// name is to be looked up, because the URL does not name the server itself. Then [`connect`](Self::connect) finds out where
    /// the server is.
    fn host(&self, nth: usize) -> Option<&Host>;

    /// The servers, for messages.
    fn shown(&self) -> String;

    /// Our credentials, and the certificates that we trust.
    fn access(&self) -> &Access;

    /// How long making a connection may take if a call may take `patience`. Does not apply to the first connection of the process.
    /// `is_urgent`: callers and heartbeats wait for all of this time before another server is tried, see [`Turn::is_urgent`]. Then it
    /// may take longer than this if the last connection did.
    fn longest(&self, patience: Duration, is_urgent: bool) -> Duration;

    /// Connects to the server that `turn` names, at the address in `turn` if it has one, and waits for the server's first answer.
    /// Fails if the server refuses these credentials. But some servers check credentials only at the first call: there, `connect`
    /// succeeds with wrong credentials, too.
    fn connect(
        connections: &Arc<Connections<Self>>,
        turn: Turn,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Translates the client crate's error: the error for the caller, and whether the connection can still be used.
    fn explain(&self, operation: &'static str, failed: Self::Failed) -> Failure;
}

/// A store's servers, and the connection in use.
pub(crate) struct Connections<L: Link> {
    pub(crate) link: L,
    pub(crate) rotation: Rotation<L::Connection>,
    /// How long a call may wait for its answer. If a caller drops a call after at least this time, and no answer to any call came
    /// on the connection in this time, the connection is given up.
    pub(crate) patience: Duration,
    in_flight: Semaphore,
    /// The slot that [`ready_soon`](Self::ready_soon) takes if calls have taken all others.
    #[cfg(any(feature = "consul", test))]
    in_reserve: Semaphore,
    state: Mutex<State<L>>,
}

struct State<L: Link> {
    /// `Some` while a task makes a connection. All callers that need a connection wait here for the outcome of that one task.
    making: Option<watch::Receiver<Option<Made<L>>>>,
    refusals: Refusals,
    /// Limits the time for the first connection of the process; `None` as soon as there has been a connection.
    first: Option<First>,
    /// How long it took to make the last connection; zero until there has been one.
    took: Duration,
}

/// What a caller needs in order to send a call: a slot among the calls that may be in flight at the same time, and the connection.
pub(crate) struct Ready<'a, L: Link> {
    pub(crate) connections: &'a Connections<L>,
    pub(crate) operation: &'static str,
    connection: L::Connection,
    epoch: u64,
    /// `None`: the call was [`urgent`](Connections::urgent), and needs no slot.
    _room: Option<SemaphorePermit<'a>>,
}

/// Held by the one task that makes a connection for all callers. Its drop notes that no such task is running, so that the next
/// caller may start another task. The drop runs however the task ends: with an outcome, by a panic, or because the runtime is shut
/// down.
struct Maker<L: Link> {
    connections: Arc<Connections<L>>,
    /// Gives the outcome to the callers who wait.
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
            #[cfg(any(feature = "consul", test))]
            in_reserve: Semaphore::new(1),
            state: Mutex::new(State {
                making: None,
                refusals: Refusals::default(),
                first: Some(First::default()),
                took: Duration::ZERO,
            }),
        }
    }

    /// The connection in use and its epoch. Makes a connection if there is none.
    ///
    /// One task makes the connection for all callers. The task goes on even if a caller gives up. If all servers have failed, the
    /// task waits until [`Turn::pause_until`] before it connects: otherwise all clients together would flood a server that is down
    /// or starting (`R4`).
    async fn connection(self: &Arc<Self>) -> Made<L> {
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let mut made = self.making()?;
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        // If the task has ended without an outcome, the runtime is shutting down.
        let gone = || Error::new(ErrorKind::Unavailable, "connect", "the runtime has ended");
        made.unwrap_or_else(|| Err(Failure::harmless(gone())))
    }

    /// Calls [`connection`](Self::connection), for one server after the other, until there is a connection.
    ///
    /// If one server refuses our credentials, and another server has an error that may pass by itself, the error that may pass is
    /// returned, and tells of the refusal. If the refusal were returned, the caller would stop trying, although the other server may
    /// be starting, and accept us soon. If it were not told of, and the other server stayed away, nobody would learn why callers wait.
    /// Before the first connection of the process, the error of the last try is returned, even if it is a refusal: the user may just
    /// have given a wrong password, and has to see that.
    pub(crate) async fn reach(self: &Arc<Self>) -> Made<L> {
        let (mut tried, mut passing, mut refusal) = (0, None, None);
        loop {
            let failure = match self.connection().await {
                Ok(made) => return Ok(made),
                Err(failure) => failure,
            };
            tried += 1;
            // Looking up a host's name may have added servers, so the number of servers is read again after each try.
            let is_one_left = tried < self.rotation.servers();
            let is_refusal = failure.is_refusal() && self.has_connected();
            if is_refusal {
                refusal = Some(failure.error.clone());
            }
            if failure.is_broken && is_one_left {
                passing = Some(failure).filter(Failure::is_of_outage).or(passing);
                continue;
            }
            let told = if is_refusal { passing.unwrap_or(failure) } else { failure };
            return Err(told.beside(refusal));
        }
    }

    /// Like [`reach`](Self::reach), but an error names this operation.
    pub(crate) async fn reach_for(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<(L::Connection, u64)> {
        // The call was not sent, so it has had no effect.
        let not_made = |failure: Failure| failure.error.during(operation).with_effect(Effect::None);
        self.reach().await.map_err(not_made)
    }

    /// A receiver of the outcome of the task that makes a connection. Starts such a task if none is running.
    ///
    /// The mutex makes sure that callers who come at the same time find the same task. One race is left: a caller finds no
    /// connection just before the running task installs a connection, and calls this function only after that task has ended. In
    /// this case this function starts another task, which finds the installed connection and makes no second one.
    fn making(self: &Arc<Self>) -> Result<watch::Receiver<Option<Made<L>>>, Failure> {
        let mut state = self.state();
        if let Some(failure) = state.refusals.of_all() {
            return Err(failure);
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
            let limit = self.limit(false, |first| first.lookup(self.link.hosts()));
            let found = timeout(limit, names::addresses(&host.name, host.port.unwrap_or_default()));
            let found = found.await.map_err(|_| late(limit))?;
            self.rotation.found(turn.epoch, &found.map_err(|error| unknown(host, &error))?);
        }
        // The place is read again, because the lookup has given it an address. If the epoch was given up during the lookup, the
        // place read here is already that of the next epoch. The connection that is made then still has the old epoch, so `install`
        // does not take it.
        let Turn { place, is_urgent, .. } = self.rotation.turn();
        let servers = self.rotation.servers();
        let limit = self.limit(is_urgent, |first| first.share(servers));
        let connecting = async {
            on_purpose("connecting");
            self.let_in(Turn { place, ..turn }).await
        };
        if let Some(failure) = self.state().refusals.of(place) {
            return Err(failure);
        }
        let begun = tokio::time::Instant::now();
        let connected = match timeout(limit, caught("connect", connecting)).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(panicked)) => Err(Failure::broken(panicked.with_effect(Effect::None))),
            Err(_) => Err(late(limit)),
        };
        if connected.is_ok() {
            self.state().took = begun.elapsed();
        }
        if let Err(failure) = &connected
            && failure.is_refusal()
            && self.has_connected()
        {
            // Noted before the failure is reported to the rotation. If this failure is the last of all servers, the report makes the
            // rotation forget the addresses of all names. After that it could not be found out any more whether all addresses have
            // refused us.
            self.state().refusals.note(place, failure, |is_so| self.rotation.all(is_so));
        }
        connected
    }

    /// Makes a connection with the newest credentials. If that fails, tries the credentials with which a server last accepted us:
    /// perhaps this server does not know the newest ones yet.
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
        // Some servers just close the connection if they refuse the credentials. So every failure may mean that the credentials
        // were refused, unless nobody listens at the address, or the host has no address.
        let is_there = !matches!(failure.error.kind(), ErrorKind::Refused | ErrorKind::Dns);
        let Some(other) = access.instead_of(&newest).filter(|_| is_there) else {
            return Err(failure);
        };
        let connection = L::connect(self, turn, &other).await.map_err(|_| failure)?;
        access.let_in(&other);
        Ok(connection)
    }

    /// How long looking up a name, or connecting, may take. Until the process has had a connection, `of_first` determines the time;
    /// later, the time is [`Link::longest`].
    ///
    /// If the last connection took long to make, because the server is far away for instance, the next one has twice that time, though
    /// it is urgent. Otherwise no try would be long enough as long as the session may be saved, and each loss of a connection would
    /// cost the session (`R1`).
    fn limit(&self, is_urgent: bool, of_first: impl FnOnce(&mut First) -> Duration) -> Duration {
        let mut state = self.state();
        if let Some(first) = &mut state.first {
            return of_first(first);
        }
        let longest = |is_urgent| self.link.longest(self.patience, is_urgent);
        longest(false).min(longest(is_urgent).max(2 * state.took))
    }

    /// Waits for a slot among the calls in flight, and for a connection. The call has not been sent yet when this returns.
    ///
    /// If no slot becomes free within half of `patience`, the call fails without having been sent, and its caller tries again. If
    /// the call were sent with too little time left for its answer, the caller would not know whether the call took effect, and the
    /// connection would be given up.
    pub(crate) async fn ready(self: &Arc<Self>, operation: &'static str) -> Result<Ready<'_, L>> {
        self.ready_with(operation, self.in_flight.acquire()).await
    }

    /// Like [`ready`](Self::ready), for a call that finds out whether something was lost. Such a call does not wait behind the others:
    /// if they have taken all slots, there is one more, which only these calls take.
    #[cfg(any(feature = "consul", test))]
    pub(crate) async fn ready_soon(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<Ready<'_, L>> {
        let room = async {
            tokio::select! {
                biased;
                room = self.in_flight.acquire() => room,
                room = self.in_reserve.acquire() => room,
            }
        };
        self.ready_with(operation, room).await
    }

    async fn ready_with<'a>(
        self: &'a Arc<Self>,
        operation: &'static str,
        room: impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>,
    ) -> Result<Ready<'a, L>> {
        let room = timeout(self.patience / 2, room).await;
        let room = room.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation, "too many calls are under way")
        })?;
        // The semaphores are never closed, so there is always a permit here.
        Ok(Ready { _room: room.ok(), ..self.urgent(operation).await? })
    }

    /// Like [`ready`](Self::ready), but takes no slot. This is for heartbeats, which must never wait for other calls.
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

    /// Like [`call`](Self::call), but takes no slot. This is for heartbeats, which must never wait for other calls.
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

    /// Runs `work`, which is a call on the connection of this epoch. The connection is given up if the outcome shows that it is
    /// broken. It is also given up if `work` is dropped after at least `patience`, and no answer to any call came on the connection
    /// in that time.
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
            // The server refused to accept one more connection. That is neither a failure of the connection in use nor an answer on
            // it, so nothing is reported to the rotation.
            Err(failure) if failure.is_full && !failure.is_broken => drop(attempt.unhurried()),
            outcome => {
                attempt.ended(outcome.as_ref().is_err_and(|failure| failure.is_broken));
            }
        }
        outcome.map_err(|failure| self.advised(failure))
    }

    /// Translates the error of a failed call. If the server refused our credentials, and the files that the URL names hold other
    /// credentials by now, the connection counts as broken: then another connection is made, with the new credentials.
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

    /// A receiver of the epoch of the connection in use. The epoch changes whenever a connection is given up.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.rotation.epochs()
    }

    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<L: Link> Maker<L> {
    /// First drops this `Maker`, so that another task may be started, and only then gives the outcome to the callers who wait. If
    /// the outcome were given first, a caller who gets a failure and asks for a connection again at once would find this task still
    /// noted, and would get the same failure without a new try.
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

    /// Like [`make`](Self::make), for a `call` that does not send its request on the connection in use, but on another connection.
    /// Whatever the outcome is, the connection in use is kept.
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
