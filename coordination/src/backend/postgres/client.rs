//! A connection to the server: sends calls on it, and receives the server's notifications from it.
//!
//! A client has one connection at a time; see [`connections`](crate::backend::server::connections). Each connection has a number,
//! its epoch, which is higher than those of earlier connections. If a caller gives up a statement before its answer has come, the
//! connection is given up too, and nothing more is sent on it (C3). The server may carry out that statement later. But if a call of
//! the same session has come on a newer connection by then, the server rejects the statement.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Row, Statement};

use super::config::Schema;
use super::database::{SETTINGS, Server};
use super::error::{self, failure};
use super::link::{Opened, Running, not_set};
use super::prepared::{Prepared, Way};
use super::statement::{self, Typed};
use crate::backend::SessionId;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::notifications::Subscriptions;
use crate::backend::server::sql::{Call, Connections, Sent};
use crate::error::{Effect, Error, ErrorKind};
use crate::panics::caught;
use crate::url::Host;

/// The settings and the state that all connections of this client share.
pub(super) struct Postgres {
    pub(super) database: String,
    /// The schema with our tables and functions.
    pub(super) schema: Schema,
    pub(super) hub: Arc<Subscriptions>,
    /// The name of this client's own channel. Whoever knows it can tell this client that the turn of one of its entries has come, and
    /// is believed. So only those may find it out who may read our tables, or see the
    /// statements of others.
    pub(super) channel: String,
    /// The `application_name` of this client's connections. Every role sees it in `pg_stat_activity`, so it is not the channel's name.
    pub(super) name: String,
    /// The server that was connected to last; `None`: none was yet.
    last: Mutex<Option<Server>>,
    /// Whether the newest connection leads to a pooler (such as pgbouncer), and not to the server itself. Notifications do not come
    /// through a pooler, so waiters have to ask the server.
    pub(super) is_pooled: AtomicBool,
    /// Locked by a task from when it asks `hub` which channels to subscribe or unsubscribe until the server has answered. Without
    /// this mutex, a task could decide to unsubscribe a channel to which nobody listens; then a new listener sends LISTEN; then the
    /// task sends UNLISTEN; and the listener gets no notifications.
    pub(super) listening: tokio::sync::Mutex<()>,
}

/// A connection to a server that can be written to.
pub(super) struct Connection {
    client: tokio_postgres::Client,
    pub(super) server: Server,
    connections: Weak<Connections<Postgres>>,
    epoch: u64,
    /// Set when the server warns that it has committed without waiting for a replica's confirmation, so that a fail-over may lose
    /// the commit. The call in progress then fails with an unknown effect, and the connection is given up.
    is_unconfirmed: Arc<AtomicBool>,
    /// The statements that are prepared on this connection.
    // Invariant: none of them is dropped before `client`, which is declared before this field. When a statement is dropped while
    // there is a client, the client crate sends a request to close it.
    prepared: Prepared<Statement>,
}

impl Postgres {
    pub(super) fn new(database: String, schema: Schema) -> Self {
        Self {
            database,
            schema,
            hub: Arc::new(Subscriptions::new("", "own")),
            channel: channel_of(&SessionId::random().to_string()),
            name: channel_of(&SessionId::random().to_string()),
            last: Mutex::default(),
            is_pooled: AtomicBool::new(false),
            listening: tokio::sync::Mutex::default(),
        }
    }

    /// Notes the server that was connected to. Logs what it does not promise although the one before did: `characteristics()` goes on
    /// saying what the first one promised, and `require=` was checked there.
    fn note(&self, server: Server) {
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(server);
        if let Some(reason) = before.and_then(|before| server.lacks(before)) {
            tracing::warn!(
                backend = "postgres",
                reason,
                "the server in use promises less than the one before"
            );
        }
    }

    /// Translates a channel's name in [`Subscriptions`] to its name at the server. The functions in the database (`channel_of` in
    /// `schema.sql`) compute the same name for a queue's channel.
    fn name_of(&self, channel: &str) -> String {
        match channel.strip_prefix(QUEUES) {
            Some(path) => channel_of(&format!("{}.{path}", self.schema.name())),
            None => self.channel.clone(),
        }
    }

    /// The statements that subscribe to these channels (LISTEN), or unsubscribe from them (UNLISTEN): that for this client's own
    /// channel, if it is among them, and those for queues' channels in one text. They are apart because the client crate writes such
    /// a text into its log (`log`, level debug), where the name of this client's own channel does not belong.
    pub(super) fn statements(
        &self,
        command: &str,
        channels: &[String],
    ) -> (Option<String>, String) {
        let (mut own, mut queues) = (None, String::new());
        for channel in channels {
            // The names need no escaping, because they have only letters, digits and a colon.
            let statement = format!("{command} \"{}\";", self.name_of(channel));
            match channel.starts_with(QUEUES) {
                true => queues.push_str(&statement),
                false => own = Some(statement),
            }
        }
        (own, queues)
    }

    /// Passes a notification on to the hub. If it did not come on this client's own channel, it came on a queue's channel. The
    /// server's name of that channel is a hash, so the queue is found by its path, with which the notification's text begins.
    pub(super) fn told(&self, epoch: u64, channel: &str, text: &str) {
        if channel == self.channel {
            self.hub.told(epoch, OWN, text);
        } else if let Some((path, what)) = text.split_once(' ') {
            self.hub.told(epoch, &format!("{QUEUES}{path}"), what);
        }
    }
}

/// The name in [`Subscriptions`] of the channel that belongs to this client alone.
const OWN: &str = "client:own";
/// The names of queues' channels in [`Subscriptions`] begin with this text; the queue's path follows.
const QUEUES: &str = "queue:";

/// Makes a name for a channel at the server. It contains a hash of the text and not the text itself, because the server allows only
/// 63 bytes.
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
            let opened = dialect.open(user, place, credentials, settings).await?;
            let Opened { client, running, local } = opened;
            let all = Arc::downgrade(connections);
            let running = tokio::spawn(run(running, all, epoch, Arc::clone(&is_unconfirmed)));
            let patience = connections.patience;
            let (schema, name) = (&dialect.schema, &dialect.name);
            let server = Server::greet(&client, local, schema, name, patience).await?;
            Ok((client, running, server))
        };
        let (mut client, running, mut server) = begin(None).await?;
        if server.begins_otherwise {
            // The task of the first connection is ended here. Otherwise, when the first connection closes, its task would give up
            // the epoch, and so the second connection, which has the same epoch.
            running.abort();
            (client, _, server) = begin(Some(SETTINGS)).await?;
        }
        if server.begins_otherwise {
            return Err(Failure::broken(not_set()));
        }
        server.keep_settings(&client).await?;
        dialect.is_pooled.store(server.is_pooled, Ordering::Relaxed);
        dialect.note(server);
        if !connections.has_connected() {
            Server::check_rights(&client, &dialect.schema).await?;
        }
        let channels = dialect.hub.channels();
        let connections = Arc::downgrade(connections);
        let prepared = Prepared::new(server.is_direct);
        let connection = Self { client, server, connections, epoch, is_unconfirmed, prepared };
        connection.listen(&channels, "connect").await?;
        dialect.hub.subscribed(&channels, epoch);
        Ok(connection)
    }

    /// Sends a call as one SQL statement, and returns the rows of the answer.
    pub(super) async fn call(&self, dialect: &Postgres, call: &Call) -> Result<Vec<Row>, Failure> {
        let typed = statement::arguments(call, self.epoch.cast_signed(), &dialect.channel);
        let sent = self.sent();
        let rows = self.send(&dialect.schema, call, &typed).await;
        sent.answered();
        let rows = rows.map_err(|error| failure(call.operation, &error))?;
        if self.is_unconfirmed.load(Ordering::SeqCst) {
            let message = "the server was told not to wait for its replicas any longer";
            let error = Error::new(ErrorKind::Unavailable, call.operation, message);
            return Err(Failure::broken(error.with_effect(Effect::Unknown)));
        }
        Ok(rows)
    }

    /// Sends the statement of a call and waits for the answer. If the statement was prepared on this connection, only its name is sent.
    async fn send(
        &self,
        schema: &Schema,
        call: &Call,
        typed: &[Typed<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let key = (call.function, typed.len());
        let way = self.prepared.way(key);
        if let Way::Named(statement) = &way {
            let values: Vec<_> = typed.iter().map(value_of).collect();
            return self.client.query(statement, &values).await;
        }
        let text = statement::text_of(call, typed.len(), schema);
        let arguments: Vec<_> = typed.iter().map(|one| (value_of(one), one.1.clone())).collect();
        let calling = self.client.query_typed(&text, &arguments);
        if matches!(way, Way::Unnamed) {
            return calling.await;
        }
        let types: Vec<_> = typed.iter().map(|(_, of)| of.clone()).collect();
        // Both are sent at once, the call first, so that this call too takes one round trip. The client crate asks the server for no
        // types: those of the arguments are given, and those of the columns are built in.
        let (rows, prepared) =
            tokio::join!(biased; calling, self.client.prepare_typed(&text, &types));
        // If the statement could not be prepared, that is no error of the call, which has an answer of its own.
        if let Ok(statement) = prepared {
            self.prepared.keep(key, statement);
        }
        rows
    }

    /// Subscribes this connection to channels, by the command LISTEN. `channels` are names as [`Subscriptions`] has them.
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
        // Behind a pooler, nothing is sent. A LISTEN would be in force on a server connection that the pooler later gives to other
        // clients, and the notifications would not reach this client.
        if self.server.is_pooled {
            return Ok(());
        }
        let Some(connections) = self.connections.upgrade() else { return Ok(()) };
        let (own, queues) = connections.link.dialect.statements(command, channels);
        let for_own = async {
            match &own {
                Some(own) => self.client.execute_typed(own, &[]).await.map(drop),
                None => Ok(()),
            }
        };
        let for_queues = async {
            match queues.is_empty() {
                false => self.client.batch_execute(&queues).await,
                true => Ok(()),
            }
        };
        let sent = self.sent();
        // Both are sent at once, and take one round trip.
        let (own_done, queues_done) = tokio::join!(biased; for_own, for_queues);
        sent.answered();
        own_done.and(queues_done).map_err(|error| failure(operation, &error))
    }

    fn sent(&self) -> Sent<'_, Postgres> {
        Sent::on(&self.connections, self.epoch)
    }
}

fn value_of<'a>((value, _): &'a Typed<'_>) -> &'a (dyn ToSql + Sync) {
    value
}

/// The task of a connection. Until the connection ends, polling `running` sends statements and reads answers, and this task passes
/// notifications to the hub and notes warnings. At the end it gives up the connection's epoch, so that another connection is made.
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
                    // The server sends the warning before the answer to the statement that it is about. So `is_unconfirmed` is set
                    // before `call` gets that answer and looks at it.
                    is_unconfirmed.fetch_or(error::is_unconfirmed(&said), Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            let Some(connections) = connections.upgrade() else { return };
            connections.link.dialect.told(epoch, told.channel(), told.payload());
        }
    });
    // The result is ignored, because a panic in `served` has been logged by `caught` already.
    let _ = served.await;
    connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(epoch));
}
