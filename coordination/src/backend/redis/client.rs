//! Connections: where they go, what is listened to on them, and which one a call is made on.
//!
//! The client crate's own manager of connections never replaces one that has gone silent: see
//! [`connections`](crate::backend::server::connections). Each connection has a number, its epoch. The server refuses what
//! comes on a connection older than the newest one it has heard of, so that a call that was given up can do no harm,
//! however late it arrives.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::config::{Config, Place};
use super::connection::{Connection, Known, Ran, replicas_of};
use super::error::failure;
use super::link::{nodes, probe};
use super::rights;
use super::script::{Answer, Call};
use super::sentinels::Sentinels;
use super::topology::Nodes;
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Followed, Subscriptions};
use crate::backend::server::rotation::Turn;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::url::Host;

/// How often nodes of a cluster may send us on, before one says that it has our keys.
const REDIRECTIONS: usize = 5;
/// Between two tries while our keys move to another node.
const MOVING: Duration = Duration::from_millis(10);
/// How many channels one request subscribes to: each channel is an answer of its own, and the server closes a connection on
/// which too much was not read yet.
const BATCH: usize = 4096;
const WANTS_TLS: &str = "the server wants TLS, or is no Redis: try rediss://";

/// The places, and the connection in use.
pub(super) type Connections = connections::Connections<Client>;

/// What a connection is made with.
pub(super) struct Client {
    pub(super) config: Config,
    /// The Sentinels that are asked for the master; `None`: the URL has none.
    pub(super) sentinels: Option<Arc<Sentinels>>,
    /// The nodes of the cluster, if it is one.
    nodes: Nodes,
    /// The record that any server told this client last, and the newest time in it.
    pub(super) known: Arc<Mutex<Known>>,
    /// Held while channels are subscribed to, or unsubscribed from.
    subscribing: tokio::sync::Mutex<()>,
    /// The channels to subscribe to next; `None`: nobody has asked for more.
    next: Mutex<Option<Batch>>,
    /// The key of the namespace's clock.
    pub(super) clock: String,
    /// How long a lease may have been of which no record is left.
    pub(super) unknown: Duration,
    /// The name of a key that there never is.
    pub(super) nowhere: String,
    hub: Arc<Subscriptions>,
    /// How long a call may take.
    pub(super) patience: Duration,
}

/// Where a greeting led.
enum Greeted {
    Here(Box<Connection>),
    There(Host),
}

/// Channels that are subscribed to together, and what comes of it.
struct Batch {
    channels: BTreeSet<String>,
    outcome: watch::Sender<Option<Result<()>>>,
}

impl Client {
    pub(super) fn new(
        mut config: Config,
        base: &str,
        unknown: Duration,
        hub: Arc<Subscriptions>,
        patience: Duration,
    ) -> Self {
        if let Place::Hosts(hosts) | Place::Sentinels(hosts, _) = &mut config.place {
            // A thousand clients must not all come to the same one (`R4`).
            rand::seq::SliceRandom::shuffle(hosts.as_mut_slice(), &mut crate::env::rng());
        }
        let sentinels = match &config.place {
            Place::Sentinels(hosts, name) => Some(Arc::new(Sentinels::new(hosts, name, patience))),
            _ => None,
        };
        Self {
            config,
            sentinels,
            nodes: Nodes::default(),
            known: Arc::default(),
            subscribing: tokio::sync::Mutex::default(),
            next: Mutex::default(),
            clock: format!("{base}clock"),
            unknown,
            nowhere: format!("{base}nowhere"),
            hub,
            patience,
        }
    }

    /// Where to try: the master that the Sentinels name, a node of the cluster, or the URL's host whose turn it is.
    ///
    /// Answers an address too, if it is the turn of one of the host's own.
    async fn place(
        &self,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<(Host, Option<SocketAddr>), Failure> {
        if let Some(sentinels) = &self.sentinels {
            return Ok((sentinels.master(&self.config, credentials).await?, None));
        }
        match self.nodes.take_turn() {
            Some(node) => Ok((node, None)),
            None => Ok((self.config.host(turn.place.host)?, turn.place.address)),
        }
    }

    /// Goes where the keys are.
    async fn find(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Connection, Failure> {
        let client = &connections.link;
        let (mut host, mut address) = client.place(turn, credentials).await?;
        for _ in 0..REDIRECTIONS {
            let greeting = Self::greeted(connections, (&host, address), turn.epoch, credentials);
            match greeting.await? {
                Greeted::Here(connection) => return Ok(*connection),
                Greeted::There(other) => (host, address) = (other, None),
            }
        }
        let message = "the nodes of the cluster send us on for ever";
        Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
    }

    /// Asks the server what it is, subscribes, and greets it, on every connection: by its answer to the greeting, a node of a
    /// cluster says whether it has our keys.
    async fn greeted(
        connections: &Arc<Connections>,
        (host, address): (&Host, Option<SocketAddr>),
        epoch: u64,
        credentials: &Credentials,
    ) -> Result<Greeted, Failure> {
        let client = &connections.link;
        let there = (host, address);
        let connect = || client.config.connect(there, credentials, pushes(connections, epoch));
        let redis = connect().await?;
        let channels = client.hub.channels();
        let mut listening = redis.clone();
        let subscribing = async {
            for batch in channels.chunks(BATCH) {
                listening.subscribe(batch).await.map_err(|error| failure("connect", &error))?;
            }
            Ok(())
        };
        let ((server, topology, syncs), ()) = tokio::try_join!(probe(&redis), subscribing)?;
        client.hub.subscribed(&channels, epoch);
        let mut connection =
            Connection::new(connections, there, epoch, redis, (server, topology, syncs));
        if !connections.has_connected() {
            rights::check(&connection.redis, &client.nowhere).await?;
        }
        // If our keys are moving (`Ran::Moving`), the connection is used without a greeting: the first call on it greets the
        // server.
        if let Ran::Moved(other) = connection.greet().await? {
            return Ok(Greeted::There(other));
        }
        if topology.is_cluster {
            client.learn(&connection).await;
        }
        if topology.confirming > 0 {
            let confirming = connect().await?;
            // Fails now if the user may not wait for replicas.
            replicas_of(&confirming, 0, Duration::ZERO, "connect").await?;
            connection.confirming = Some(confirming);
        }
        Ok(Greeted::Here(Box::new(connection)))
    }

    async fn learn(&self, connection: &Connection) {
        let mut found = nodes(&connection.redis, &connection.host).await;
        if let Place::Hosts(hosts) = &self.config.place
            && !found.is_empty()
        {
            found.extend(hosts.iter().cloned());
        }
        self.nodes.learn(connection.host.clone(), found);
    }

    fn next(&self) -> MutexGuard<'_, Option<Batch>> {
        self.next.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Link for Client {
    type Connection = Arc<Connection>;
    type Failed = Failure;

    const IN_FLIGHT: usize = 64;
    const SECURE: &'static str = "rediss://";
    const WANTS_TLS: &'static str = WANTS_TLS;

    fn hosts(&self) -> usize {
        self.config.count()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.config.named(nth)
    }

    fn shown(&self) -> String {
        self.config.shown()
    }

    fn access(&self) -> &Access {
        &self.config.access
    }

    /// Making a connection takes three round trips, a call one.
    fn longest(&self, patience: Duration) -> Duration {
        3 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Arc<Connection>, Failure> {
        // Whatever it was, the next place may do better.
        let broken = |failure| Failure { is_broken: true, ..failure };
        Client::find(connections, turn, credentials).await.map(Arc::new).map_err(broken)
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

/// What a connection tells by itself: messages, and its end.
pub(super) fn pushes(
    connections: &Arc<Connections>,
    epoch: u64,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    let hub = Arc::clone(&connections.link.hub);
    let connections = Arc::downgrade(connections);
    move |push| {
        match push.kind {
            PushKind::Message => told(&hub, &push.data),
            PushKind::Disconnection => {
                connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
            }
            _ => {}
        }
        Ok(())
    }
}

fn told(hub: &Subscriptions, message: &[Value]) {
    let [Value::BulkString(channel), Value::BulkString(text)] = message else { return };
    if let (Ok(channel), Ok(text)) = (str::from_utf8(channel), str::from_utf8(text)) {
        hub.told(channel, text);
    }
}

impl Connections {
    /// Makes the first connection.
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let failure = match self.reach().await {
            Ok((connection, _)) => return Ok(connection),
            Err(failure) => failure,
        };
        let config = &self.link.config;
        // If the server has said something, that is the error. One that was silent or hung up may expect TLS, or have none.
        let is_silent = failure.is_hang_up || failure.is_late;
        let error = failure.error;
        if !is_silent || !config.speaks_otherwise().await {
            return Err(error.at(&self.shown()));
        }
        let no_tls = "the server has no TLS: use redis://";
        let advice = if config.access.is_secure() { no_tls } else { WANTS_TLS };
        let advice = Error::new(ErrorKind::Tls, "connect", advice);
        Err(advice.with_source(error).at(&self.shown()))
    }

    /// The name of the record on the connection in use: another one wherever something may have been forgotten.
    pub(super) fn record(&self) -> Option<String> {
        self.rotation.connected().map(|(connection, _)| connection.record_name())
    }

    /// Whether that record is known to reach back so far.
    pub(super) fn reaches(&self, length: Duration) -> bool {
        self.rotation.connected().is_some_and(|(connection, _)| connection.reaches(length))
    }

    /// Makes a call on the connection in use.
    pub(super) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move {
            connection.run(&connection.redis, call).await
        };
        self.repeated(call, false, run).await
    }

    /// [`run`](Self::run) without waiting until few enough calls are in flight: for heartbeats.
    pub(super) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move {
            connection.run(&connection.redis, call).await
        };
        self.repeated(call, true, run).await
    }

    /// [`run_urgently`](Self::run_urgently), and waits until as many replicas have confirmed it as the server wants.
    pub(super) async fn run_confirmed(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move { connection.run_confirmed(call).await };
        self.repeated(call, true, run).await
    }

    /// Makes a call that a session's deadline is counted from, which fails unless the server is still the one that most
    /// Sentinels name, if there are some. With `is_confirmed`, replicas have to confirm it as well.
    pub(super) async fn run_vouched(
        self: &Arc<Self>,
        call: &Call,
        is_confirmed: bool,
    ) -> Result<Answer> {
        let sentinels = match &self.link.sentinels {
            Some(sentinels) => sentinels,
            None if is_confirmed => return self.run_confirmed(call).await,
            None => return self.run(call).await,
        };
        let run = |connection: Arc<Connection>| async move {
            let ran = async {
                match is_confirmed {
                    true => connection.run_confirmed(call).await,
                    false => connection.run(&connection.redis, call).await,
                }
            };
            let (config, credentials) = (&self.link.config, self.link.config.access.used());
            let (ran, named) = tokio::join!(ran, sentinels.master(config, &credentials));
            let unnamed = |failure: Failure| {
                let error = failure.error.during(call.operation).with_effect(Effect::Unknown);
                Failure::harmless(error)
            };
            let (ran, named) = (ran?, named.map_err(unnamed)?);
            Ok(if named == connection.host { ran } else { Ran::Moved(named) })
        };
        self.repeated(call, true, run).await
    }

    /// Whether what is granted has to be confirmed by replicas.
    pub(super) fn has_confirming(&self) -> bool {
        self.rotation.connected().is_some_and(|(connection, _)| connection.confirming.is_some())
    }

    /// Makes a call, and again where it was not carried out because our keys are at another node or about to be, for as
    /// long as a call may take.
    async fn repeated<F>(
        self: &Arc<Self>,
        call: &Call,
        is_urgent: bool,
        run: impl Fn(Arc<Connection>) -> F,
    ) -> Result<Answer>
    where
        F: Future<Output = Result<Ran, Failure>>,
    {
        let begun = Instant::now();
        loop {
            let ready = match is_urgent {
                true => self.urgent(call.operation).await?,
                false => self.ready(call.operation).await?,
            };
            let epoch = ready.epoch();
            let outcome = match call.is_listing() {
                true => ready.make_elsewhere(&run).await,
                false => ready.make(&run).await,
            };
            match outcome? {
                Ran::Answer(answer) => return Ok(answer),
                Ran::Moved(host) => {
                    self.link.nodes.point_to(host);
                    self.rotation.leave(epoch);
                }
                Ran::Moving => sleep(MOVING).await,
            }
            if begun.elapsed() > self.patience {
                let message = "the keys are moving to another server";
                return Err(Error::new(ErrorKind::Unavailable, call.operation, message));
            }
        }
    }

    /// Leaves a server that most Sentinels do not name any more.
    pub(super) async fn look_again(&self) {
        let Some(sentinels) = &self.link.sentinels else { return };
        let Some((connection, epoch)) = self.rotation.connected() else { return };
        let (config, credentials) = (&self.link.config, self.link.config.access.used());
        let named = sentinels.master(config, &credentials).await;
        if named.is_ok_and(|named| named != connection.host) {
            self.rotation.leave(epoch);
        }
    }

    /// Listens to what happens in a queue, from now on at the latest.
    ///
    /// Thousands may begin at once. So one task subscribes to all that was asked for while it was busy with others, and only
    /// the time that the server takes for one batch counts as its silence.
    pub(super) async fn follow(self: &Arc<Self>, queue: &str) -> Result<watch::Receiver<Followed>> {
        let (_, epoch) = self.reach_for("watch").await?;
        let (following, channel) = self.link.hub.follow(queue, epoch);
        if let Some(channel) = channel {
            let mut outcome = self.subscribed(channel);
            let outcome =
                outcome.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
            // Without an answer the runtime is going away.
            let gone = || Error::new(ErrorKind::Unavailable, "watch", "the runtime has ended");
            outcome.unwrap_or_else(|| Err(gone()))?;
        }
        Ok(following)
    }

    /// Adds a channel to the next batch, and answers what will come of it.
    fn subscribed(self: &Arc<Self>, channel: String) -> watch::Receiver<Option<Result<()>>> {
        let mut next = self.link.next();
        let batch = next.get_or_insert_with(|| {
            let connections = Arc::clone(self);
            tokio::spawn(async move { connections.subscribe_to_next().await });
            Batch { channels: BTreeSet::new(), outcome: watch::Sender::new(None) }
        });
        batch.channels.insert(channel);
        batch.outcome.subscribe()
    }

    async fn subscribe_to_next(self: &Arc<Self>) {
        let _one_at_a_time = self.link.subscribing.lock().await;
        let Some(Batch { channels, outcome }) = self.link.next().take() else { return };
        let channels: Vec<_> = channels.into_iter().collect();
        let subscribing = async {
            on_purpose("watching");
            self.subscribe(&channels).await
        };
        let subscribed = caught("watch", subscribing).await.flatten();
        outcome.send_replace(Some(subscribed));
    }

    async fn subscribe(self: &Arc<Self>, channels: &[String]) -> Result<()> {
        let (connection, epoch) = self.reach_for("watch").await?;
        for batch in channels.chunks(BATCH) {
            let mut redis = connection.redis.clone();
            let subscribing =
                async { redis.subscribe(batch).await.map_err(|error| failure("watch", &error)) };
            in_time(self.patience, self.on_epoch("watch", epoch, subscribing)).await?;
            self.link.hub.subscribed(batch, epoch);
        }
        Ok(())
    }

    /// Unsubscribes from channels to which nobody listens any longer. Now and then also asks a cluster for its nodes, and
    /// greets the server again.
    pub(super) async fn sweep(&self) {
        let _one_at_a_time = self.link.subscribing.lock().await;
        let channels = self.link.hub.sweep();
        let Some((connection, _)) = self.rotation.connected() else { return };
        let mut redis = connection.redis.clone();
        let unsubscribing = async {
            if connection.topology.is_cluster && self.link.nodes.are_old() {
                self.link.learn(&connection).await;
            }
            if connection.is_old() {
                // If this fails, calls that somebody waits for will tell.
                let _ = connection.look_again().await;
            }
            for batch in channels.chunks(BATCH) {
                let _ = redis.unsubscribe(batch).await;
            }
        };
        // One message too many harms nobody; those who want to listen must not wait for a connection that is silent.
        let _ = timeout(self.patience, unsubscribing).await;
    }
}
