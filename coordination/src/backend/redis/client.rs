//! The connection, and what is said on it.
//!
//! The client crate's own manager of connections never replaces one that has gone silent: see
//! [`connections`](crate::backend::server::connections). Each connection has a number, its epoch. The server refuses what
//! comes on a connection older than the newest one it has heard of, so that a call that was given up can do no harm,
//! however late it arrives.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind as RedisKind, PushInfo, PushKind, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::config::{Config, Place};
use super::error::failure;
use super::link::probe;
use super::script::{Answer, Call, Script};
use super::server::Server;
use super::watches::{Followed, Hub};
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::rotation::Turn;
use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// How many channels one request is about: each is an answer, and the server keeps only so much that was not read yet.
const BATCH: usize = 4096;
const WANTS_TLS: &str = "the server wants TLS, or is no Redis: try rediss://";

/// The places, and the connection in use.
pub(super) type Connections = connections::Connections<Client>;

/// What a connection is made with.
pub(super) struct Client {
    pub(super) config: Config,
    /// The server that was greeted last, another one for each start of its process; `None`: there was none yet.
    run_id: Mutex<Option<String>>,
    /// Held while what is listened to changes.
    subscribing: tokio::sync::Mutex<()>,
    /// The key of the namespace's clock.
    clock: String,
    hub: Arc<Hub>,
}

/// A connection in use.
pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) server: Server,
    redis: MultiplexedConnection,
    clock: String,
    /// The scripts that were sent in full, a bit each.
    sent: AtomicU16,
}

impl Client {
    pub(super) fn new(mut config: Config, clock: String, hub: Arc<Hub>) -> Self {
        if let Place::Hosts(hosts) | Place::Sentinels(hosts, _) = &mut config.place {
            // A thousand clients must not all come to the same one (`R4`).
            rand::seq::SliceRandom::shuffle(hosts.as_mut_slice(), &mut crate::world::rng());
        }
        let (run_id, subscribing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { config, run_id, subscribing, clock, hub }
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
            for batch in channels.chunks(BATCH) {
                listening.subscribe(batch).await.map_err(|error| failure("connect", &error))?;
            }
            Ok(())
        };
        let (server, ()) = tokio::try_join!(probe(&redis), subscribing)?;
        self.hub.subscribed(&channels, epoch);
        let clock = self.clock.clone();
        let connection = Connection { epoch, server, redis, clock, sent: AtomicU16::new(0) };
        let run_id = &connection.server.run_id;
        // Otherwise its clock knows it, or says that it does not.
        if self.run_id().as_ref() != Some(run_id) {
            connection.greet().await?;
            *self.run_id() = Some(run_id.clone());
        }
        Ok(connection)
    }

    fn run_id(&self) -> MutexGuard<'_, Option<String>> {
        self.run_id.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Link for Client {
    type Connection = Arc<Connection>;
    type Failed = Failure;

    const IN_FLIGHT: usize = 64;
    const SECURE: &'static str = "rediss";
    const WANTS_TLS: &'static str = WANTS_TLS;

    fn servers(&self) -> usize {
        self.config.count()
    }

    fn shown(&self) -> String {
        self.config.shown()
    }

    fn is_secure(&self) -> bool {
        self.config.is_secure()
    }

    /// It is two round trips, and a call is one.
    fn longest(patience: Duration) -> Duration {
        2 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
    ) -> Result<Arc<Connection>, Failure> {
        let (client, epoch) = (&connections.link, turn.epoch);
        let connect = async |moved_to: Option<&str>| {
            let pushes = pushes(connections, epoch);
            let redis = client.config.connect(turn.index, moved_to, pushes).await?;
            client.greeted(redis, epoch).await
        };
        let connected = match connect(None).await {
            // A cluster, and another node has our keys.
            Err(Failure { moved_to: Some(place), .. }) => connect(Some(&place)).await,
            outcome => outcome,
        };
        // Whatever it was, the next place may do better.
        let broken = |failure| Failure { is_broken: true, ..failure };
        connected.map(Arc::new).map_err(broken)
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

/// What a connection tells by itself: messages, and its end.
fn pushes(
    connections: &Arc<Connections>,
    epoch: u64,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    let hub = Arc::clone(&connections.link.hub);
    let connections = Arc::downgrade(connections);
    move |push| {
        match push.kind {
            PushKind::Message => hub.told(&push.data),
            PushKind::Disconnection => {
                connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Connections {
    /// The first call of all: who is there?
    pub(super) async fn first(self: &Arc<Self>) -> Result<Server> {
        let error = match self.reach().await {
            Ok((connection, _)) => return Ok(connection.server.clone()),
            Err(failure) => failure.error,
        };
        let config = &self.link.config;
        if error.kind() != ErrorKind::Unavailable || !config.speaks_otherwise().await {
            return Err(error.at(&self.shown()));
        }
        let no_tls = "the server has no TLS: use redis://";
        let advice = if config.is_secure() { no_tls } else { WANTS_TLS };
        let advice = Error::new(ErrorKind::Tls, "connect", advice);
        Err(advice.with_source(error).at(&self.shown()))
    }

    /// Which server it was that was greeted last: another one for each start of its process.
    pub(super) fn run_id(&self) -> Option<String> {
        self.link.run_id().clone()
    }

    /// Makes a call on the connection in use.
    pub(super) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move { connection.run(call).await };
        self.call(call.operation, run).await
    }

    /// [`run`](Self::run) that waits for no other, for heartbeats.
    pub(super) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move { connection.run(call).await };
        self.urgent_call(call.operation, run).await
    }

    /// Listens to what happens in a queue, from now on at the latest.
    pub(super) async fn follow(self: &Arc<Self>, queue: &str) -> Result<watch::Receiver<Followed>> {
        let _one_at_a_time = self.link.subscribing.lock().await;
        let (connection, epoch) = self.reach_for("watch").await?;
        let (following, channel) = self.link.hub.follow(queue, epoch);
        if let Some(channel) = channel {
            let mut redis = connection.redis.clone();
            let subscribing =
                async { redis.subscribe(&channel).await.map_err(|error| failure("watch", &error)) };
            self.on_epoch("watch", epoch, subscribing).await?;
            self.link.hub.subscribed(&[channel], epoch);
        }
        Ok(following)
    }

    /// Wants to hear no more of what nobody listens to any longer.
    pub(super) async fn sweep(&self) {
        let _one_at_a_time = self.link.subscribing.lock().await;
        let channels = self.link.hub.sweep();
        let Some((connection, _)) = self.rotation.connected() else { return };
        let mut redis = connection.redis.clone();
        let unsubscribing = async {
            for batch in channels.chunks(BATCH) {
                let _ = redis.unsubscribe(batch).await;
            }
        };
        // One message too many harms nobody; those who want to listen must not wait for a connection that is silent.
        let _ = timeout(self.patience, unsubscribing).await;
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
        let forgets = if self.server.keeps == Durability::Yes { "0" } else { "1" };
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
        let answer = answer.map_err(|error| failure(call.operation, &error))?;
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
