//! Which server to connect to, what a connection subscribes to, and how calls are made on the connection in use.
//!
//! The client crate's own connection manager never replaces a connection on which the server has stopped answering. So this module
//! uses [`connections`](crate::backend::server::connections) instead.
//!
//! Each connection has a number, its epoch, which is higher than those of all earlier connections. The server notes for each
//! session the highest epoch that a call of the session came with, and rejects calls with a lower epoch. So if the client gives up
//! a call and replaces the connection, the call has no effect if it arrives after the first call on the new connection.

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
use super::script::{Answer, Call, Source};
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

/// How many redirections from one node of a cluster to another are followed while one connection is made. More are an error.
const REDIRECTIONS: usize = 5;
/// The pause between two tries of a call while our keys are being moved to another node.
const MOVING: Duration = Duration::from_millis(10);
/// How many channels one request subscribes to. The server sends an answer for each channel, and closes a connection on which too
/// many answers wait to be read.
const BATCH: usize = 4096;
const WANTS_TLS: &str = "the server wants TLS, or is no Redis: try rediss://";

/// The servers of the URL, and the connection in use.
pub(super) type Connections = connections::Connections<Client>;

/// What is needed to make connections to the servers of the URL.
pub(super) struct Client {
    pub(super) config: Config,
    /// The Sentinels, which tell which server is the master; `None`: the URL names no Sentinels.
    pub(super) sentinels: Option<Arc<Sentinels>>,
    /// The nodes of the Redis cluster; not used if the server is not in a cluster.
    nodes: Nodes,
    /// What the newest answers of servers said: the name of the server's record of the namespace (a hash that says whether grants
    /// may have been forgotten), and the newest time under that record. All connections share this, so that a server with older
    /// data is recognised after a reconnect.
    pub(super) known: Arc<Mutex<Known>>,
    /// Locked by a task while it subscribes to channels or unsubscribes from them, so that only one task does so at a time.
    subscribing: tokio::sync::Mutex<()>,
    /// The channels to which the next task will subscribe, and the outcome of that task. `None`: since the last task took its
    /// channels from here, nobody has asked for a channel.
    next: Mutex<Option<Batch>>,
    /// The name of the key of the namespace's clock. Every script gets this name, because the names of all other keys are made from
    /// it.
    pub(super) clock: String,
    /// Sent to a server that has lost its record of the namespace: the server assumes that the leases that it has forgotten are no
    /// longer than this, and grants nothing for that long.
    pub(super) unknown: Duration,
    /// The name of a key that never exists. In a cluster, each call names this key too, for a reason that [`Call::command`] gives.
    /// The check of the user's rights tries commands on it.
    pub(super) nowhere: String,
    hub: Arc<Subscriptions>,
    /// How long the server may take to answer a call.
    pub(super) patience: Duration,
}

/// The outcome of connecting to a server: `Here` is a usable connection; `There` is another node of the cluster, to which the
/// server redirects because that node has our keys.
enum Greeted {
    Here(Box<Connection>),
    There(Host),
}

/// Channels that one task subscribes to in one go. The callers who have asked for the channels wait for `outcome`, which is `None`
/// until the task is done.
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
            // The hosts are shuffled, so that many clients with the same URL do not all connect to the same server first (`R4`).
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

    /// The server to connect to next: the master that the Sentinels name; otherwise a node of the cluster, if nodes are known;
    /// otherwise the host of the URL that `turn` names.
    ///
    /// The address is `Some` if `turn` names one of several addresses of the host; `None`: all addresses of the host may be tried.
    async fn place(
        connections: &Connections,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<(Host, Option<SocketAddr>), Failure> {
        let client = &connections.link;
        if let Some(sentinels) = &client.sentinels {
            return Ok((connections.master(sentinels, credentials).await?, None));
        }
        match client.nodes.take_turn() {
            Some(node) => Ok((node, None)),
            None => Ok((client.config.host(turn.place.host)?, turn.place.address)),
        }
    }

    /// Connects to the server that has our keys. If a node of a cluster redirects to another node, connects to that one instead.
    async fn find(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Connection, Failure> {
        let (mut host, mut address) = Self::place(connections, turn, credentials).await?;
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

    /// Connects to this server, asks what it is, subscribes to this process's channels, and greets the server: the script
    /// `greet.lua` gets what this client knows of the namespace's record, and returns the record that the server has. If the server
    /// is a node of a cluster and does not have our keys, it answers the greeting with a redirection.
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
        // `Ran::Moving`: our keys are being moved to another node, so the server was not greeted. The connection can be used all
        // the same: the first call on it will get the answer `stranger`, and `Connection::run` then greets the server.
        if let Ran::Moved(other) = connection.greet().await? {
            return Ok(Greeted::There(other));
        }
        if topology.is_cluster {
            client.learn(&connection).await;
        }
        if topology.confirming > 0 {
            let confirming = connect().await?;
            // With `wanted` 0, `WAIT` returns at once. It is sent only to find out, before any lock is granted, whether the user
            // has the right to call it.
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

    /// Making a connection takes several steps one after the other, each with a round trip, above all: log in, ask what the server
    /// is, greet it. A call takes one round trip. So a connection may take three times as long as a call.
    fn longest(&self, patience: Duration, _is_urgent: bool) -> Duration {
        3 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Arc<Connection>, Failure> {
        // Every failure to connect is reported as a broken connection, whatever its reason, so that the caller tries the next
        // server: connecting may succeed there.
        let broken = |failure| Failure { is_broken: true, ..failure };
        Client::find(connections, turn, credentials).await.map(Arc::new).map_err(broken)
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

/// Returns the callback that the client crate calls for what the server sends without a request, and when the connection ends. The
/// callback passes messages on channels to the hub. When the connection of this epoch ends, the callback gives it up, so that
/// another one is made.
pub(super) fn pushes(
    connections: &Arc<Connections>,
    epoch: u64,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    let hub = Arc::clone(&connections.link.hub);
    let connections = Arc::downgrade(connections);
    move |push| {
        match push.kind {
            PushKind::Message => told(&hub, epoch, &push.data),
            PushKind::Disconnection => {
                connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
            }
            _ => {}
        }
        Ok(())
    }
}

fn told(hub: &Subscriptions, epoch: u64, message: &[Value]) {
    let [Value::BulkString(channel), Value::BulkString(text)] = message else { return };
    if let (Ok(channel), Ok(text)) = (str::from_utf8(channel), str::from_utf8(text)) {
        hub.told(epoch, channel, text);
    }
}

impl Connections {
    /// Makes the first connection, when the store is opened. If that fails, the error may advise to use TLS, or not to use it.
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let failure = match self.reach().await {
            Ok((connection, _)) => return Ok(connection),
            Err(failure) => failure,
        };
        let config = &self.link.config;
        // If the server has answered with an error, that error is returned as it is. If the server gave no answer or closed the
        // connection, the reason may be that it expects TLS and the URL has none, or that the URL has TLS and the server has none.
        // So `speaks_otherwise` tries the opposite of what the URL says.
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

    /// The name of the server's record of the namespace, as the connection in use knows it; `None`: there is no connection. The
    /// record gets a new name whenever the server may have forgotten grants. Callers notice this by comparing the name with an
    /// earlier one.
    pub(super) fn record(&self) -> Option<String> {
        self.rotation.connected().map(|(connection, _)| connection.record_name())
    }

    /// Whether the server is known to have forgotten nothing within the last `length`. False if there is no connection.
    pub(super) fn reaches(&self, length: Duration) -> bool {
        self.rotation.connected().is_some_and(|(connection, _)| connection.reaches(length))
    }

    /// Makes a call on the connection in use; makes a connection first if there is none.
    pub(super) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move {
            connection.run(&connection.redis, call).await
        };
        self.repeated(call, false, run).await
    }

    /// Like [`run`](Self::run), but the call does not wait until fewer than [`IN_FLIGHT`](Link::IN_FLIGHT) calls are in flight.
    /// Heartbeats use this, because they must not wait for other calls.
    pub(super) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move {
            connection.run(&connection.redis, call).await
        };
        self.repeated(call, true, run).await
    }

    /// Makes a call as [`run_urgently`](Self::run_urgently) does, and then waits until replicas have received what the call has
    /// written: as many replicas as `min-replicas-to-write` says.
    pub(super) async fn run_confirmed(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let run = |connection: Arc<Connection>| async move { connection.run_confirmed(call).await };
        self.repeated(call, true, run).await
    }

    /// Makes a call as [`run_confirmed`](Self::run_confirmed) does, to confirm an answer of this `source`. The error is `Unavailable`
    /// if another connection is in use by now, or the server has another record: what the answer said may not be so there.
    pub(super) async fn run_confirmed_by(&self, source: Source, call: &Call) -> Result<Answer> {
        let epoch = source.epoch;
        if let Some(connection) = self.in_use(epoch) {
            let confirming = connection.run_confirmed(call);
            let ran = self.on_epoch(call.operation, epoch, confirming).await?;
            if let Ran::Answer(answer) = ran
                && answer.source == source
            {
                return Ok(answer);
            }
        }
        let message = "the connection was replaced before replicas had confirmed the grant";
        Err(Error::new(ErrorKind::Unavailable, call.operation, message))
    }

    /// The connection in use, if it is that of this epoch.
    fn in_use(&self, epoch: u64) -> Option<Arc<Connection>> {
        let connected = self.rotation.connected().filter(|(_, of_now)| *of_now == epoch);
        connected.map(|(connection, _)| connection)
    }

    /// The source of an answer on the connection of this epoch; `None`: another connection is in use by now.
    pub(super) fn source(&self, epoch: u64) -> Option<Source> {
        self.in_use(epoch).map(|connection| connection.source())
    }

    /// Makes a call that begins or extends a session's lease. If the URL has Sentinels, they are asked for the master at the same time. If
    /// more than half of the Sentinels name the server that was called, its answer is returned. If more than half of them name another
    /// server, the call is made again there, whatever this one has answered. If the Sentinels were not asked, a master that was replaced
    /// could go on extending leases of which the new master knows nothing.
    ///
    /// With `is_confirmed`, the call also waits until replicas have confirmed it, as in [`run_confirmed`](Self::run_confirmed).
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
            let credentials = self.link.config.access.used();
            let (ran, named) = tokio::join!(ran, self.master(sentinels, &credentials));
            let unnamed = |failure: Failure| {
                let error = failure.error.during(call.operation).with_effect(Effect::Unknown);
                Failure::harmless(error)
            };
            // The Sentinels' word counts before the server's answer. A master that was replaced may refuse the call for a reason that
            // the new master does not have, and refuse it again each time.
            match named {
                Ok(named) if named != connection.host => Ok(Ran::Moved(named)),
                named => {
                    let ran = ran?;
                    named.map_err(unnamed)?;
                    Ok(ran)
                }
            }
        };
        self.repeated(call, true, run).await
    }

    /// The server that more than half of the Sentinels name.
    async fn master(
        &self,
        sentinels: &Arc<Sentinels>,
        credentials: &Credentials,
    ) -> Result<Host, Failure> {
        let named = sentinels.master(&self.link.config, credentials).await;
        named.map_err(|failure| match failure.error.kind() {
            // The name was right, so that the Sentinels do not know the master will pass: an operator has removed it, and adds it
            // again with other settings, or the Sentinels were started without their files.
            ErrorKind::Config if self.has_connected() => {
                let message = failure.error.message().to_owned();
                let error = Error::new(ErrorKind::Unavailable, "connect", message);
                Failure { error: error.with_source(failure.error), ..failure }
            }
            _ => failure,
        })
    }

    /// Whether a grant counts only once replicas have confirmed it, because the server has `min-replicas-to-write`. Also if there
    /// is no connection: the server may have answered and ended, and the server of the next connection may not know the grant.
    pub(super) fn has_confirming(&self) -> bool {
        let connected = self.rotation.connected();
        connected.is_none_or(|(connection, _)| connection.confirming.is_some())
    }

    /// Makes a call on the connection in use, by `run`. The call is made again if it has no valid outcome, for one of these
    /// reasons: our keys are at another server, another server is the master, or our keys are being moved. After `patience`, the
    /// call is not repeated any more, and the error `Unavailable` is returned.
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

    /// Asks the Sentinels for the master, and gives up the connection in use if more than half of them name another server. Called
    /// when a Sentinel has published that there is a new master, so that this is noticed before the next heartbeat.
    pub(super) async fn look_again(&self) {
        let Some(sentinels) = &self.link.sentinels else { return };
        let Some((connection, epoch)) = self.rotation.connected() else { return };
        let named = self.master(sentinels, &self.link.config.access.used()).await;
        if named.is_ok_and(|named| named != connection.host) {
            self.rotation.leave(epoch);
        }
    }

    /// Subscribes to a queue's channel, unless the connection in use has subscribed to it already. When this returns, the server
    /// has confirmed the subscription, so no later message on the channel is missed as long as the connection lasts.
    ///
    /// Thousands of callers may want different channels at the same time. So one task at a time subscribes for all of them: while
    /// the task subscribes to one batch of channels, the channels of later callers are collected for the next batch. A caller may
    /// wait for several batches. The connection is given up only if a single batch gets no answer in time.
    pub(super) async fn follow(self: &Arc<Self>, queue: &str) -> Result<watch::Receiver<Followed>> {
        let (_, epoch) = self.reach_for("watch").await?;
        let (following, channel) = self.link.hub.follow(queue, epoch);
        if let Some(channel) = channel {
            let mut outcome = self.subscribed(channel);
            let outcome =
                outcome.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
            // If `outcome` is `None`, the task that subscribes has ended without setting an outcome. That happens only when the
            // runtime shuts down.
            let gone = || Error::new(ErrorKind::Unavailable, "watch", "the runtime has ended");
            outcome.unwrap_or_else(|| Err(gone()))?;
        }
        Ok(following)
    }

    /// Adds a channel to the next batch, and returns a receiver of that batch's outcome. If there is no next batch yet, makes one,
    /// and starts a task that will subscribe to the channels of the batch.
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

    /// Unsubscribes from channels to which nobody in this process listens any longer. Called with each heartbeat. If a cluster was
    /// last asked for its nodes more than ten seconds ago, also asks for them again. If the server was last greeted more than ten
    /// seconds ago, also greets it again. Both the nodes and the server's record may have changed.
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
                // An error is ignored here: whatever makes this fail also makes the next call fail, and that call's caller gets the
                // error.
                let _ = connection.look_again().await;
            }
            for batch in channels.chunks(BATCH) {
                let _ = redis.unsubscribe(batch).await;
            }
        };
        // The time is bounded because the mutex `subscribing` is locked here, and tasks that want to subscribe wait for it: they
        // must not wait for ever if the server does not answer. If the time runs out, some channels stay subscribed, and messages
        // come that nobody needs. That does no harm.
        let _ = timeout(self.patience, unsubscribing).await;
    }
}
