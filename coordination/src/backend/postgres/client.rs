//! A connection: how a call is made on it, and how notifications come.
//!
//! A client has one connection at a time; see [`connections`](crate::backend::server::connections). Each connection has a number,
//! its epoch. When a caller gives up a statement before its answer, nothing more is sent on its connection (C3). The server may
//! come to the statement late. It then rejects the statement if a call of the session has come on a newer connection before.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Row};

use super::config::Schema;
use super::database::{SETTINGS, Server};
use super::error::{self, failure};
use super::link::{Running, not_set};
use super::statement;
use crate::backend::SessionId;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::notifications::Subscriptions;
use crate::backend::server::sql::{Call, Connections, Sent};
use crate::error::{Effect, Error, ErrorKind};
use crate::panics::caught;
use crate::url::Host;

/// What is the same for all connections of this client.
pub(super) struct Postgres {
    pub(super) database: String,
    /// The schema with our tables and functions.
    pub(super) schema: Schema,
    pub(super) hub: Arc<Subscriptions>,
    /// The name of this client's own channel, which is also the `application_name` of its connections.
    pub(super) channel: String,
    /// Whether the newest connection leads to a pooler, and not to the server itself. Then no notifications come.
    pub(super) is_pooled: AtomicBool,
    /// Held from asking `hub` which channels to add or drop until the server has answered. Without it, this could happen: a sweep
    /// decides to drop a channel that nobody follows; a new follower sends LISTEN; the sweep sends UNLISTEN; and the follower gets
    /// no notifications.
    pub(super) listening: tokio::sync::Mutex<()>,
}

/// A connection to a server that can be written to.
pub(super) struct Connection {
    client: tokio_postgres::Client,
    pub(super) server: Server,
    connections: Weak<Connections<Postgres>>,
    epoch: u64,
    /// Whether the server has warned that it did not wait for a replica's confirmation of a commit, which a fail-over may then
    /// lose. The call fails with an unknown effect, and the connection is given up.
    is_unconfirmed: Arc<AtomicBool>,
}

impl Postgres {
    pub(super) fn new(database: String, schema: Schema) -> Self {
        Self {
            database,
            schema,
            hub: Arc::new(Subscriptions::new("", "own")),
            channel: channel_of(&SessionId::random().to_string()),
            is_pooled: AtomicBool::new(false),
            listening: tokio::sync::Mutex::default(),
        }
    }

    /// The name at the server of a channel that is named as in [`Subscriptions`]. For a queue's channel, the functions in the
    /// database compute the same name.
    fn name_of(&self, channel: &str) -> String {
        match channel.strip_prefix(QUEUES) {
            Some(path) => channel_of(&format!("{}.{path}", self.schema.name())),
            None => self.channel.clone(),
        }
    }

    /// Passes on a notification. It came on this client's own channel, or on a queue's channel; then its text begins with the
    /// queue's path.
    fn told(&self, channel: &str, text: &str) {
        if channel == self.channel {
            self.hub.told(OWN, text);
        } else if let Some((path, what)) = text.split_once(' ') {
            self.hub.told(&format!("{QUEUES}{path}"), what);
        }
    }
}

/// The channel that belongs to this client alone, as [`Subscriptions`] names it.
const OWN: &str = "client:own";
/// What the names of queues' channels in [`Subscriptions`] begin with; the queue's path follows.
const QUEUES: &str = "queue:";

/// A name for a channel. It has a hash of the text, because the server allows only 63 bytes.
fn channel_of(text: &str) -> String {
    let digest = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    format!("coordination:{}", &digest[..40])
}

impl Connection {
    pub(super) async fn make(
        connections: &Arc<Connections<Postgres>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> Result<Self, Failure> {
        let link = &connections.link;
        let dialect = &link.dialect;
        let is_unconfirmed = Arc::new(AtomicBool::new(false));
        let begin = async |settings| -> Result<_, Failure> {
            let user = &link.servers.user;
            let (client, running) = dialect.open(user, place, credentials, settings).await?;
            let all = Arc::downgrade(connections);
            let running = tokio::spawn(run(running, all, epoch, Arc::clone(&is_unconfirmed)));
            let patience = connections.patience;
            let server = Server::greet(&client, &dialect.schema, patience).await?;
            Ok((client, running, server))
        };
        let (mut client, running, mut server) = begin(None).await?;
        if server.begins_otherwise {
            // The task of the first connection is ended, because at its end it would give up the epoch, which is also that of the
            // second connection.
            running.abort();
            (client, _, server) = begin(Some(SETTINGS)).await?;
        }
        if server.begins_otherwise {
            return Err(Failure::broken(not_set()));
        }
        dialect.is_pooled.store(server.is_pooled, Ordering::Relaxed);
        if !connections.has_connected() {
            Server::check_rights(&client, &dialect.schema).await?;
        }
        let channels = dialect.hub.channels();
        let connections = Arc::downgrade(connections);
        let connection = Self { client, server, connections, epoch, is_unconfirmed };
        connection.listen(&channels, "connect").await?;
        dialect.hub.subscribed(&channels, epoch);
        Ok(connection)
    }

    /// Sends a call as one statement and returns the rows of its answer.
    pub(super) async fn call(&self, dialect: &Postgres, call: &Call) -> Result<Vec<Row>, Failure> {
        let typed = statement::arguments(call, self.epoch.cast_signed(), &dialect.channel);
        let text = statement::text_of(call, typed.len(), &dialect.schema);
        let arguments: Vec<_> =
            typed.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect();
        let sent = self.sent();
        let rows = self.client.query_typed(&text, &arguments).await;
        sent.answered();
        let rows = rows.map_err(|error| failure(call.operation, &error))?;
        if self.is_unconfirmed.load(Ordering::SeqCst) {
            let message = "the server was told not to wait for its replicas any longer";
            let error = Error::new(ErrorKind::Unavailable, call.operation, message);
            return Err(Failure::broken(error.with_effect(Effect::Unknown)));
        }
        Ok(rows)
    }

    /// Sends LISTEN for these channels, which are named as in [`Subscriptions`].
    pub(super) async fn listen(
        &self,
        channels: &[String],
        operation: &'static str,
    ) -> Result<(), Failure> {
        self.execute("LISTEN", channels, operation).await
    }

    pub(super) async fn execute(
        &self,
        command: &str,
        channels: &[String],
        operation: &'static str,
    ) -> Result<(), Failure> {
        // Behind a pooler, LISTEN is useless: it would stay on a server connection that the pooler gives to other clients later,
        // and its notifications would not reach this client.
        if self.server.is_pooled {
            return Ok(());
        }
        let Some(connections) = self.connections.upgrade() else { return Ok(()) };
        let mut text = String::new();
        for channel in channels {
            // Writing to a string does not fail. The names need no escaping: they have only letters, digits and a colon.
            let _ = write!(text, "{command} \"{}\";", connections.link.dialect.name_of(channel));
        }
        let sent = self.sent();
        let done = self.client.batch_execute(&text).await;
        sent.answered();
        done.map_err(|error| failure(operation, &error))
    }

    fn sent(&self) -> Sent<'_, Postgres> {
        Sent::on(&self.connections, self.epoch)
    }
}

/// Runs a connection until it is over: sends statements, reads answers, and passes on notifications and warnings. Then gives up its
/// epoch.
async fn run(
    mut running: Running,
    connections: Weak<Connections<Postgres>>,
    epoch: u64,
    is_unconfirmed: Arc<AtomicBool>,
) {
    let served = caught("connect", async {
        while let Some(Ok(message)) = poll_fn(|context| running.poll_message(context)).await {
            let told = match message {
                AsyncMessage::Notification(told) => told,
                AsyncMessage::Notice(said) => {
                    // The warning comes before the answer to its statement, so it is noted before `call` gets that answer.
                    is_unconfirmed.fetch_or(error::is_unconfirmed(&said), Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            let Some(connections) = connections.upgrade() else { return };
            connections.link.dialect.told(told.channel(), told.payload());
        }
    });
    // A panic has been logged already.
    let _ = served.await;
    connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
}
