//! Connections: where they go, what is listened to on them, and which one a call is made on.
//!
//! There is one at a time; see [`connections`](crate::backend::server::connections). Each has a number, its epoch. A statement
//! that is given up without its answer is the last one on its connection (C3), and the server refuses what comes on a
//! connection older than the newest one it has heard of, so that it can do no harm, however late it is carried out.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

use super::config::{Config, Schema};
use super::database::{SETTINGS, Server};
use super::error::{self, failure};
use super::link::{Running, not_set};
use super::statement::{Answer, Call};
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Followed, Subscriptions};
use crate::backend::server::rotation::Turn;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::url::Host;

/// The places, and the connection in use.
pub(super) type Connections = connections::Connections<Client>;

/// What a connection is made with.
pub(super) struct Client {
    pub(super) config: Config,
    pub(super) hub: Arc<Subscriptions>,
    /// Our own channel, which is also what our connections are called at the server.
    pub(super) channel: String,
    /// Whether a pooler is between, as it was found when the newest connection was made.
    pub(super) is_pooled: AtomicBool,
    /// Held by who changes what is listened to, from what the hub says to the server's answer: no UNLISTEN comes after a LISTEN that
    /// it was decided before.
    listening: tokio::sync::Mutex<()>,
}

/// A connection to a server that can be written to.
pub(super) struct Connection {
    client: tokio_postgres::Client,
    pub(super) server: Server,
    connections: Weak<Connections>,
    epoch: u64,
    /// Whether the server has said that it did not wait for a replica's word.
    is_unconfirmed: Arc<AtomicBool>,
}

/// A statement that was sent, and not answered yet.
struct Sent<'a> {
    connection: &'a Connection,
    at: Instant,
    is_answered: bool,
}

impl Client {
    pub(super) fn new(mut config: Config, hub: Arc<Subscriptions>, channel: String) -> Self {
        // A thousand clients must not all come to the same one (`R4`).
        rand::seq::SliceRandom::shuffle(config.hosts.as_mut_slice(), &mut crate::env::rng());
        let (is_pooled, listening) = (AtomicBool::new(false), tokio::sync::Mutex::default());
        Self { config, hub, channel, is_pooled, listening }
    }

    /// The server's name of one of the hub's channels: what the functions in the database make of it.
    fn name_of(&self, channel: &str) -> String {
        match channel.strip_prefix(QUEUES) {
            Some(path) => channel_of(&format!("{}.{path}", self.config.schema.name())),
            None => self.channel.clone(),
        }
    }
}

/// What the hub's channels of queues begin with.
const QUEUES: &str = "queue:";

/// A name for a channel: the server's are short.
pub(super) fn channel_of(text: &str) -> String {
    let digest = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    format!("coordination:{}", &digest[..40])
}

impl Link for Client {
    type Connection = Arc<Connection>;
    type Failed = Failure;

    /// The server carries out a connection's statements one after the other, each with its commit, and a heartbeat waits for
    /// those before it.
    const IN_FLIGHT: usize = 4;
    const SECURE: &'static str = "sslmode=verify-full";
    const WANTS_TLS: &'static str = "the server wants TLS: give `sslmode=verify-full`";

    fn hosts(&self) -> usize {
        self.config.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.config.hosts.get(nth)
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.config.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    fn access(&self) -> &Access {
        &self.config.access
    }

    /// It is several round trips, and a password costs both sides time; a call is one round trip.
    fn longest(&self, patience: Duration) -> Duration {
        5 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Arc<Connection>, Failure> {
        let made = Connection::make(connections, turn, credentials).await;
        // Whatever it was, the next place may do better.
        made.map(Arc::new).map_err(|failure| Failure { is_broken: true, ..failure })
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl Connection {
    async fn make(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Self, Failure> {
        let Client { config, hub, channel, .. } = &connections.link;
        let nowhere =
            || Failure::broken(Error::new(ErrorKind::Unavailable, "connect", "there is no server"));
        let host = config.hosts.get(turn.place.host).ok_or_else(nowhere)?;
        let address = turn.place.address.ok_or_else(nowhere)?;
        let is_unconfirmed = Arc::new(AtomicBool::new(false));
        let begin = async |settings| -> Result<_, Failure> {
            let place = (host, address);
            let (client, running) = config.open(place, channel, credentials, settings).await?;
            let all = Arc::downgrade(connections);
            let running = tokio::spawn(run(running, all, turn.epoch, Arc::clone(&is_unconfirmed)));
            let patience = connections.patience;
            let server = Server::greet(&client, &config.schema, patience).await?;
            Ok((client, running, server))
        };
        let (mut client, running, mut server) = begin(None).await?;
        if server.begins_otherwise {
            // Its end is not that of the connection that follows it.
            running.abort();
            (client, _, server) = begin(Some(SETTINGS)).await?;
        }
        if server.begins_otherwise {
            return Err(Failure::broken(not_set()));
        }
        connections.link.is_pooled.store(server.is_pooled, Ordering::Relaxed);
        if !connections.has_connected() {
            Server::check_rights(&client, &config.schema).await?;
        }
        let channels = hub.channels();
        let connections = Arc::downgrade(connections);
        let connection = Self { client, server, connections, epoch: turn.epoch, is_unconfirmed };
        connection.listen(&channels, "connect").await?;
        hub.subscribed(&channels, turn.epoch);
        Ok(connection)
    }

    /// Makes a call.
    pub(super) async fn call(&self, schema: &Schema, call: &Call) -> Result<Answer, Failure> {
        let (statement, generation) = (call.statement(schema), self.epoch.cast_signed());
        let arguments = call.arguments(&generation);
        let sent = self.sent();
        let rows = self.client.query_typed(&statement, &arguments).await;
        sent.answered();
        let rows = rows.map_err(|error| failure(call.operation, &error))?;
        if self.is_unconfirmed.load(Ordering::SeqCst) {
            let message = "the server was told not to wait for its replicas any longer";
            let error = Error::new(ErrorKind::Unavailable, call.operation, message);
            return Err(Failure::broken(error.with_effect(Effect::Unknown)));
        }
        Answer::checked(call.operation, rows).map_err(Failure::harmless)
    }

    /// Listens to these of the hub's channels.
    async fn listen(&self, channels: &[String], operation: &'static str) -> Result<(), Failure> {
        self.execute("LISTEN", channels, operation).await
    }

    async fn execute(
        &self,
        command: &str,
        channels: &[String],
        operation: &'static str,
    ) -> Result<(), Failure> {
        // It would stay on a connection that the pooler gives to others, one for each of us who ever came, and nothing that
        // is told there reaches us.
        if self.server.is_pooled {
            return Ok(());
        }
        let Some(connections) = self.connections.upgrade() else { return Ok(()) };
        let mut text = String::new();
        for channel in channels {
            // Writing to a string does not fail. The names are made of letters, digits and a colon.
            let _ = write!(text, "{command} \"{}\";", connections.link.name_of(channel));
        }
        let sent = self.sent();
        let done = self.client.batch_execute(&text).await;
        sent.answered();
        done.map_err(|error| failure(operation, &error))
    }

    fn sent(&self) -> Sent<'_> {
        Sent { connection: self, at: Instant::now(), is_answered: false }
    }
}

impl Sent<'_> {
    /// Be it by an error.
    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Sent<'_> {
    /// Given up: nothing else is sent on the connection (C3). What others have sent there before is answered yet.
    fn drop(&mut self) {
        let Connection { connections, epoch, .. } = self.connection;
        let Some(connections) = connections.upgrade().filter(|_| !self.is_answered) else { return };
        // A little less: who gives up a call after that time has begun to count a moment earlier.
        match self.at.elapsed() >= connections.patience * 9 / 10 {
            true => connections.rotation.give_up(*epoch),
            false => connections.rotation.leave(*epoch),
        }
    }
}

/// Sends statements and reads their answers, and tells what the server says by itself, until the connection is over.
async fn run(
    mut running: Running,
    connections: Weak<Connections>,
    epoch: u64,
    is_unconfirmed: Arc<AtomicBool>,
) {
    let served = caught("connect", async {
        while let Some(Ok(message)) = poll_fn(|context| running.poll_message(context)).await {
            let told = match message {
                AsyncMessage::Notification(told) => told,
                AsyncMessage::Notice(said) => {
                    // The answer that it is about is passed on after this.
                    is_unconfirmed.fetch_or(error::is_unconfirmed(&said), Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            let Some(connections) = connections.upgrade() else { return };
            connections.link.told(told.channel(), told.payload());
        }
    });
    // What a panic says is logged by then.
    let _ = served.await;
    connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
}

impl Client {
    /// A notification came: on our own channel, or of a queue on its channel, which begins with the queue's path.
    fn told(&self, channel: &str, text: &str) {
        if channel == self.channel {
            self.hub.told(OWN, text);
        } else if let Some((path, what)) = text.split_once(' ') {
            self.hub.told(&format!("{QUEUES}{path}"), what);
        }
    }
}

/// The name under which the shared watches know the channel that belongs to this client alone.
pub(super) const OWN: &str = "client:own";

impl Connections {
    /// The first call of all: who is there?
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let greeting = self.greet(|connection| async move { Ok(connection) }).await;
        greeting.map_err(|error| error.at(&self.shown()))
    }

    /// Makes a call on the connection in use.
    pub(super) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let schema = &self.link.config.schema;
        let make = |connection: Arc<Connection>| async move { connection.call(schema, call).await };
        self.call(call.operation, make).await
    }

    /// [`run`](Self::run) that waits for no other, for heartbeats.
    pub(super) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let schema = &self.link.config.schema;
        let make = |connection: Arc<Connection>| async move { connection.call(schema, call).await };
        self.urgent_call(call.operation, make).await
    }

    /// Listens to what happens in a queue, on the connection in use.
    pub(super) async fn follow(self: &Arc<Self>, path: &str) -> Result<watch::Receiver<Followed>> {
        // Nearly always somebody has listened before, and nothing is sent: that waits for no call.
        let (following, channel) = self.link.hub.follow(path, self.rotation.epoch());
        if channel.is_none() {
            return Ok(following);
        }
        // Whoever has room for a call waits for nobody who waits for room.
        let _one_at_a_time = self.link.listening.lock().await;
        let ready = self.ready("watch").await?;
        let epoch = ready.epoch();
        let (following, channel) = self.link.hub.follow(path, epoch);
        if let Some(channel) = channel {
            let channels = [channel];
            let listening = async |connection: Arc<Connection>| {
                on_purpose("watching");
                connection.listen(&channels, "watch").await
            };
            caught("watch", ready.make(listening)).await.flatten()?;
            self.link.hub.subscribed(&channels, epoch);
        }
        Ok(following)
    }

    /// Wants to hear no more of what nobody listens to any longer.
    pub(super) async fn sweep(self: &Arc<Self>) {
        if self.rotation.connected().is_none() {
            return;
        }
        let sweeping = async {
            let _one_at_a_time = self.link.listening.lock().await;
            let ready = self.ready("watch").await?;
            let channels = self.link.hub.sweep();
            if channels.is_empty() {
                return Ok(());
            }
            let no_longer = async |connection: Arc<Connection>| {
                connection.execute("UNLISTEN", &channels, "watch").await
            };
            in_time(self.patience, ready.make(no_longer)).await
        };
        // One message too many harms nobody.
        let _: Result<()> = sweeping.await;
    }
}
