//! The connection: one for all, replaced when it fails or falls silent.
//!
//! The client crate's own manager of connections never replaces one that has gone silent. So a connection is
//! used until a call fails on it or takes longer than a heartbeat may; then the next place gets a fresh one.
//! Each has a number: the server refuses what comes on a connection older than the newest one it has heard
//! of, so that a call that was given up can do no harm, however late it arrives.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind as RedisKind, PushInfo, PushKind, ServerErrorKind, Value};
use tokio::sync::{Semaphore, watch};

use super::config::{Config, Place};
use super::error::Failure;
use super::link::{Link, connect_timeout, probe};
use super::script::{Answer, Call, Script};
use super::server::{Keeps, Server};
use super::watch::{Following, Hub};
use crate::backend::rotation::{Rotation, Turn};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// How long the first connection may take.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a refusal is believed: twenty tries a minute (contract F-49).
const REFUSED: Duration = Duration::from_secs(3);
const WANTS_TLS: &str = "the server wants TLS, or is no Redis: try rediss://";
/// Calls under way at a time. A thousand at once take longer than the one that is timed may: each would
/// be given up, the connection with it, and all would come again, for ever.
const IN_FLIGHT: usize = 64;

/// The places, and the connection in use.
pub(super) struct Connections {
    link: Link,
    rotation: Rotation<Arc<Connection>>,
    told: Mutex<Told>,
    /// A call that takes longer than this has found a silent connection.
    patience: Duration,
    in_flight: Semaphore,
    /// What becomes of the connection that is being made, if one is.
    making: Mutex<Option<watch::Receiver<Made>>>,
    /// Held while what is listened to changes.
    subscribing: tokio::sync::Mutex<()>,
    /// The key of the namespace's clock.
    clock: String,
    hub: Arc<Hub>,
}

/// What servers have said so far.
#[derive(Default)]
struct Told {
    /// Why we are not let in, and until when that is believed.
    refused: Option<(Instant, Failure)>,
    /// The server that was greeted last; `None`: there was none yet.
    run_id: Option<String>,
}

/// What came of making a connection; `None`: nothing yet.
type Made = Option<Result<Arc<Connection>, Failure>>;

/// A connection in use.
pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) server: Server,
    redis: MultiplexedConnection,
    clock: String,
    /// The scripts that were sent in full, a bit each.
    sent: AtomicU16,
}

impl Connections {
    pub(super) fn new(
        mut config: Config,
        settings: &Settings,
        patience: Duration,
        clock: String,
        hub: Arc<Hub>,
    ) -> Self {
        if let Place::Hosts(hosts) | Place::Sentinels(hosts, _) = &mut config.place {
            // Contract R4: a thousand clients must not all come to the same one.
            rand::seq::SliceRandom::shuffle(hosts.as_mut_slice(), &mut crate::world::rng());
        }
        let link = Link::new(config);
        Self {
            rotation: Rotation::new(link.places(), settings, patience),
            link,
            told: Mutex::default(),
            patience,
            in_flight: Semaphore::new(IN_FLIGHT),
            making: Mutex::default(),
            subscribing: tokio::sync::Mutex::new(()),
            clock,
            hub,
        }
    }

    /// The connection in use, made if there is none.
    ///
    /// One task makes it for all, whoever of them gives up meanwhile, and not before the pause is over that
    /// follows when all places have failed: a server that is down, or coming up, is not stormed (contract R4).
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        if let Some(found) = self.connected() {
            return Ok(found);
        }
        if let Some((until, failure)) = &self.told().refused
            && Instant::now() < *until
        {
            return Err(failure.clone());
        }
        let mut made = self.making().get_or_insert_with(|| self.start_making()).clone();
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        // Without an answer the runtime is going away.
        let gone = || Error::new(ErrorKind::Unavailable, "connect", "the runtime has ended");
        made.unwrap_or_else(|| Err(Failure::harmless(gone())))
    }

    fn start_making(self: &Arc<Self>) -> watch::Receiver<Made> {
        let (sender, made) = watch::channel(None);
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = connections.make().await;
            connections.making().take();
            sender.send_replace(Some(outcome));
        });
        made
    }

    async fn make(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        if let Some(found) = self.connected() {
            return Ok(found);
        }
        let Turn { index, epoch, pause_until } = self.rotation.turn();
        let is_first = self.told().run_id.is_none();
        if let Some(moment) = pause_until {
            tokio::time::sleep_until(moment.into()).await;
        }
        // At first there is nothing yet that could be lost by patience.
        let limit = if is_first { FIRST_TIMEOUT } else { connect_timeout(self.patience) };
        let connected = tokio::time::timeout(limit, self.connect(index, epoch)).await;
        let connected = connected.unwrap_or_else(|_| {
            let message = format!("no answer within {limit:?}");
            Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
        });
        let connection = match connected {
            Ok(connection) => Arc::new(connection),
            Err(failure) => {
                self.rotation.give_up(epoch);
                if failure.is_refusal() && !is_first {
                    self.told().refused = Some((Instant::now() + REFUSED, failure.clone()));
                }
                return Err(failure);
            }
        };
        self.rotation.install(Arc::clone(&connection), epoch);
        Ok(connection)
    }

    async fn connect(self: &Arc<Self>, index: usize, epoch: u64) -> Result<Connection, Failure> {
        let redis = self.link.connect(index, self.pushes(epoch)).await?;
        match self.greeted(redis, epoch).await {
            // A cluster, and another node has our keys.
            Err(Failure { moved_to: Some(place), .. }) => {
                let redis = self.link.follow(index, &place, self.pushes(epoch)).await?;
                self.greeted(redis, epoch).await
            }
            outcome => outcome,
        }
    }

    /// What the connection tells by itself: messages, and its end.
    fn pushes(
        self: &Arc<Self>,
        epoch: u64,
    ) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
        let connections: Weak<Self> = Arc::downgrade(self);
        let hub = Arc::clone(&self.hub);
        move |push| {
            match push.kind {
                PushKind::Message => {
                    if let (Some(channel), Some(all)) =
                        (hub.told(&push.data), connections.upgrade())
                    {
                        tokio::spawn(async move { all.unsubscribe(&channel).await });
                    }
                }
                PushKind::Disconnection => {
                    connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
                }
                _ => {}
            }
            Ok(())
        }
    }

    /// Looks who is there, subscribes, and makes ourselves known.
    async fn greeted(
        &self,
        redis: MultiplexedConnection,
        epoch: u64,
    ) -> Result<Connection, Failure> {
        let channels = self.hub.channels();
        let mut listening = redis.clone();
        let subscribing = async {
            listening.subscribe(&channels).await.map_err(|error| Failure::of("connect", &error))
        };
        let (server, ()) = tokio::try_join!(probe(&redis), subscribing)?;
        self.hub.subscribed(&channels, epoch);
        let clock = self.clock.clone();
        let connection = Connection { epoch, server, redis, clock, sent: AtomicU16::new(0) };
        let run_id = &connection.server.run_id;
        // Otherwise its clock knows it, or says that it does not.
        if self.told().run_id.as_ref() != Some(run_id) {
            connection.greet().await?;
            self.told().run_id = Some(run_id.clone());
        }
        Ok(connection)
    }

    fn making(&self) -> MutexGuard<'_, Option<watch::Receiver<Made>>> {
        self.making.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn connected(&self) -> Option<Arc<Connection>> {
        self.rotation.connected().map(|(connection, _)| connection)
    }

    /// The first call of all: who is there?
    pub(super) async fn greet(self: &Arc<Self>) -> Result<Server> {
        let mut left = self.link.places();
        loop {
            left -= 1;
            match self.connection().await {
                Ok(connection) => return Ok(connection.server.clone()),
                Err(failure) if left == 0 => {
                    let error = self.advised(failure.error).await;
                    return Err(error.at(&self.link.shown()));
                }
                Err(_) => {}
            }
        }
    }

    /// With advice where the other side does not speak as we do.
    async fn advised(&self, error: Error) -> Error {
        let advice = match (error.kind(), self.link.is_secure()) {
            (ErrorKind::Tls, false) => WANTS_TLS,
            (ErrorKind::Unavailable, is_secure) if self.link.speaks_otherwise().await => {
                if is_secure {
                    "the server has no TLS: use redis://"
                } else {
                    WANTS_TLS
                }
            }
            _ => return error,
        };
        Error::new(ErrorKind::Tls, "connect", advice).with_source(error)
    }

    /// Which server it was that was greeted last: another one for each start of its process.
    pub(super) fn run_id(&self) -> Option<String> {
        self.told().run_id.clone()
    }

    /// Told of every connection that is given up; its value is the number of the one in use.
    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.rotation.epochs()
    }

    /// Makes a call on the connection in use.
    pub(super) async fn call(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        // Never closed, so it is got in any case.
        let _permit = self.in_flight.acquire().await;
        self.urgent_call(call).await
    }

    /// [`call`](Self::call) that waits for no other, for heartbeats.
    pub(super) async fn urgent_call(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(failure) => return Err(for_call(failure.error, call.operation)),
        };
        self.judged(connection.epoch, connection.run(call)).await
    }

    /// Listens to what happens in a queue, from now on at the latest.
    pub(super) async fn follow(self: &Arc<Self>, queue: &str) -> Result<Following> {
        let _one_at_a_time = self.subscribing.lock().await;
        let connection = self.connection().await.map_err(|failure| failure.error)?;
        let (following, channel) = self.hub.follow(queue, connection.epoch);
        if let Some(channel) = channel {
            let mut redis = connection.redis.clone();
            let subscribing = async {
                redis.subscribe(&channel).await.map_err(|error| Failure::of("watch", &error))
            };
            self.judged(connection.epoch, subscribing).await?;
            self.hub.subscribed(&[channel], connection.epoch);
        }
        Ok(following)
    }

    /// Wants to hear no more of a channel, unless somebody has begun to listen to it again.
    async fn unsubscribe(&self, channel: &str) {
        let _one_at_a_time = self.subscribing.lock().await;
        if let Some(connection) = self.connected()
            && !self.hub.channels().iter().any(|wanted| wanted == channel)
        {
            // One message too many harms nobody; those who want to listen must not wait for a connection that is silent.
            let mut redis = connection.redis.clone();
            let _ = tokio::time::timeout(self.patience, redis.unsubscribe(channel)).await;
        }
    }

    async fn judged<T>(
        &self,
        epoch: u64,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T> {
        let attempt = self.rotation.attempt(epoch);
        let outcome = work.await;
        attempt.ended(matches!(&outcome, Err(failure) if failure.is_broken));
        outcome.map_err(|failure| failure.error)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Connection {
    /// Runs a script. What a server does not know of us since it started is told first.
    async fn run(&self, call: &Call) -> Result<Answer, Failure> {
        let mut answer = self.evaluate(call).await?;
        if answer.status == "stranger" {
            self.greet().await?;
            answer = self.evaluate(call).await?;
        }
        checked(call.operation, answer).map_err(Failure::harmless)
    }

    /// Tells the server's clock of which process it is.
    async fn greet(&self) -> Result<(), Failure> {
        let up = u64::try_from(self.server.uptime().as_micros()).unwrap_or(u64::MAX);
        let forgets = if self.server.keeps == Keeps::All { "0" } else { "1" };
        let call = Call::new("connect", Script::Greet).with_number(up).with(forgets);
        self.evaluate(&call).await.map(drop)
    }

    async fn evaluate(&self, call: &Call) -> Result<Answer, Failure> {
        let send = async |in_full: bool| {
            let command = call.command(&self.clock, &self.server, self.epoch, in_full);
            command.query_async::<Value>(&mut self.redis.clone()).await
        };
        // That a server does not know a script costs a round trip: so it is told at first.
        let is_first = self.sent.fetch_or(call.bit(), Ordering::Relaxed) & call.bit() == 0;
        let answer = match send(is_first).await {
            Err(error) if error.kind() == RedisKind::Server(ServerErrorKind::NoScript) => {
                send(true).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| Failure::of(call.operation, &error))?;
        Answer::read(answer).map_err(Failure::harmless)
    }
}

/// The answers that mean the same in all scripts.
fn checked(operation: &'static str, mut answer: Answer) -> Result<Answer> {
    let unavailable = |message: &str| Err(Error::new(ErrorKind::Unavailable, operation, message));
    match answer.status.as_str() {
        "lost" => Err(Error::lost(operation, LossReason::ExpiredByServer)),
        "stale" => unavailable("the connection was given up"),
        "stranger" => unavailable("the server lost its data just now"),
        "removed" => unavailable("the entry was removed again"),
        "quarantine" => {
            let left = Duration::from_micros(answer.natural()?);
            unavailable(&format!(
                "the server was started lately and may have forgotten who holds what: nothing is granted for {left:?}"
            ))
        }
        _ => Ok(answer),
    }
}

/// A call that was not made, as there is no connection, has changed nothing.
fn for_call(error: Error, operation: &'static str) -> Error {
    Error::new(error.kind(), operation, error.to_string())
}
