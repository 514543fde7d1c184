//! Connections: what is listened to on them, and how a call is made on one.
//!
//! There is one at a time; see [`connections`](crate::backend::server::connections). Each has a number, its epoch. A statement
//! that is given up without its answer is the last one on its connection (C3), and the server refuses what comes on a
//! connection older than the newest one it has heard of, so that it can do no harm, however late it is carried out.

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

/// What all our connections have in common.
pub(super) struct Postgres {
    pub(super) database: String,
    /// In which our tables are.
    pub(super) schema: Schema,
    pub(super) hub: Arc<Subscriptions>,
    /// Our own channel, which is also what our connections are called at the server.
    pub(super) channel: String,
    /// Whether a pooler is between, as it was found when the newest connection was made.
    pub(super) is_pooled: AtomicBool,
    /// Held by who changes what is listened to, from what the hub says to the server's answer: no UNLISTEN comes after a LISTEN that
    /// it was decided before.
    pub(super) listening: tokio::sync::Mutex<()>,
}

/// A connection to a server that can be written to.
pub(super) struct Connection {
    client: tokio_postgres::Client,
    pub(super) server: Server,
    connections: Weak<Connections<Postgres>>,
    epoch: u64,
    /// Whether the server has said that it did not wait for a replica's word.
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

    /// The server's name of one of the hub's channels: what the functions in the database make of it.
    fn name_of(&self, channel: &str) -> String {
        match channel.strip_prefix(QUEUES) {
            Some(path) => channel_of(&format!("{}.{path}", self.schema.name())),
            None => self.channel.clone(),
        }
    }

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
const OWN: &str = "client:own";
/// What the hub's channels of queues begin with.
const QUEUES: &str = "queue:";

/// A name for a channel: the server's are short.
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
            // Its end is not that of the connection that follows it.
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

    /// Makes a call.
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

    /// Listens to these of the hub's channels.
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
        // It would stay on a connection that the pooler gives to others, one for each of us who ever came, and nothing that
        // is told there reaches us.
        if self.server.is_pooled {
            return Ok(());
        }
        let Some(connections) = self.connections.upgrade() else { return Ok(()) };
        let mut text = String::new();
        for channel in channels {
            // Writing to a string does not fail. The names are made of letters, digits and a colon.
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

/// Sends statements and reads their answers, and tells what the server says by itself, until the connection is over.
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
                    // The answer that it is about is passed on after this.
                    is_unconfirmed.fetch_or(error::is_unconfirmed(&said), Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            let Some(connections) = connections.upgrade() else { return };
            connections.link.dialect.told(told.channel(), told.payload());
        }
    });
    // What a panic says is logged by then.
    let _ = served.await;
    connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
}
