//! What stores have in common that keep their queues in the tables of an SQL server: PostgreSQL and MySQL.
//!
//! Each operation of a store's traits is one call of a function (PostgreSQL) or procedure (MySQL) in the database: one transaction,
//! and one round trip. The names, arguments and results of these functions are the same on both servers, so the calls are made
//! here. A [`Dialect`] has what differs: how to connect, how to write a call as SQL and read a row, and how waiters learn of
//! changes.

mod answer;
mod call;
mod config;
mod connections;
mod entries;
mod open_sessions;
mod sessions;
mod values;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::answer::{Answer, Row, corrupt};
pub(crate) use self::call::{Argument, Call};
pub(crate) use self::config::{Modes, Servers};
pub(crate) use self::connections::Sent;
use self::open_sessions::OpenSessions;
use super::connections::{self as generic, Failure};
use super::credentials::Credentials;
use super::own_entries::OwnEntries;
use super::patience;
use super::reads::Reads;
use crate::backend::descriptor::Descriptor;
use crate::backend::{EntryId, Mode, SessionId, Store};
use crate::characteristics::{Characteristics, Durability, Liveness, Scope};
use crate::config::Settings;
use crate::error::Result;
use crate::key::{self, QueueKey};
use crate::url::Host;

/// What differs between PostgreSQL and MySQL.
pub(crate) trait Dialect: Sized + Send + Sync + 'static {
    /// All connections of one epoch: one to the server on PostgreSQL, several on MySQL, which are made and given up together.
    type Connection: Send + Sync + 'static;
    type Row: Row;
    /// What the dialect remembers of each of our own entries, in [`OwnEntries`].
    type Known: Clone + Default + Send;
    /// A subscription to the changes of one queue; it lasts at least until this is dropped.
    type Following: Send;

    const DESCRIPTOR: &'static Descriptor;
    /// How many calls may be in flight at the same time.
    const IN_FLIGHT: usize;
    /// The URL option that turns TLS on, for messages.
    const SECURE: &'static str;
    /// The advice in the error if the server demands TLS and the URL has turned it off.
    const WANTS_TLS: &'static str;

    /// Connects to the server at `place`. `epoch` is the number of the connection, which the server gets as the `generation` of
    /// each call.
    fn connect(
        connections: &Arc<Connections<Self>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Sends a call and returns the rows of its answer. `is_urgent`: the call belongs to a heartbeat or to the poll for all
    /// waiters, and is not to wait for the slots and connections that other calls use.
    fn carry_out(
        &self,
        connection: &Self::Connection,
        call: &Call,
        is_urgent: bool,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failure>> + Send;

    /// What survives a crash or a fail-over, by the server's settings when this connection was made.
    fn promises(connection: &Self::Connection) -> Promises;

    /// Removes those entries of the session that were entered on older connections and are not in `own`: a replica that took over
    /// may lack the newest releases, and so still have entries that were left. False: some entries are left, because other
    /// transactions have locked their rows.
    fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<Self::Known>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads a queue. The number counts the queue's changes up to the read, or to a moment before, and is passed to
    /// [`moved`](Self::moved) later. `None`: this process is not subscribed to the queue's changes.
    fn read(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<(Answer<Self::Row>, Option<u64>)>> + Send;

    /// Called before each heartbeat, to clean up. It must not block, because the heartbeat is sent only afterwards.
    fn tidy(_store: &SqlStore<Self>) {}

    /// Whether a notification has said, a moment ago, that nothing blocks our entry with this number. This saves the call of
    /// `position`. The notification is used up.
    fn is_turn(&self, _path: &str, _seq: u64) -> bool {
        false
    }

    /// Notes the entry that blocks our own `entry`, so that a notification of its end can be matched. `None`: no such entry
    /// is known, or our entry waits no longer.
    fn waits(_store: &SqlStore<Self>, _entry: &EntryId, _before: Option<Before>) {}

    /// Called after this client has changed a queue, so that waiters in this process learn of it at once. `_entry`: the number of
    /// an entry that may block nothing any more, because it was updated or removed.
    fn touched(&self, _path: &str, _entry: Option<u64>) {}

    /// How long a waiter waits before it asks the server again, if the session wants it to do so at least every `recheck`.
    fn at_most(&self, recheck: Duration) -> Duration {
        recheck
    }

    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode. It asks the server at least
    /// once in every `recheck`, because a notification may be lost. It may resolve early: the caller then asks for the position of
    /// its own entry.
    fn gone(
        store: &SqlStore<Self>,
        path: &str,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Subscribes to the changes of a queue.
    fn follow(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<Self::Following>> + Send;

    /// Resolves when the number of the queue's changes is no longer `count`, as [`read`](Self::read) returned it, or when a
    /// notification may have been lost.
    fn moved(following: &mut Self::Following, count: u64) -> impl Future<Output = ()> + Send;
}

/// The servers of the URL, and the connection in use.
pub(crate) type Connections<D> = generic::Connections<Client<D>>;

/// What is needed to make a connection.
pub(crate) struct Client<D> {
    pub(crate) servers: Servers,
    pub(crate) dialect: D,
}

/// What survives a crash or a fail-over, by the server's settings.
pub(crate) struct Promises {
    pub(crate) survives_restart: Durability,
    pub(crate) survives_power_loss: Durability,
    pub(crate) survives_failover: Durability,
    /// Why two clients may hold the same lock while servers are cut off from each other; `None`: they cannot.
    pub(crate) partition_overlap: Option<&'static str>,
}

/// The entry that blocks one of our own entries.
pub(crate) struct Before {
    pub(crate) path: String,
    pub(crate) seq: u64,
    /// The mode of our own entry.
    pub(crate) mode: Mode,
    /// The epoch of the connection on which the server named the blocking entry.
    pub(crate) epoch: u64,
    /// When the lease of the blocking entry ends, unless it is renewed.
    pub(crate) until: Instant,
}

/// The state in which a queue was last read; `changed` waits for another one.
#[derive(Clone, Copy)]
struct Seen {
    /// The number of the queue's changes; `None`: this process was not subscribed to them.
    count: Option<u64>,
    /// When the first lease of the queue's entries ends, unless it is renewed.
    expires: Option<Instant>,
}

/// Waiters ask the server this long after a lease should have ended: asked at that very moment, the server may still find the lease
/// running.
pub(crate) const LITTLE: Duration = Duration::from_millis(2);

/// The backend: a namespace in a database.
pub(crate) struct SqlStore<D: Dialect> {
    pub(crate) connections: Arc<Connections<D>>,
    sessions: Arc<OpenSessions<D>>,
    pub(crate) entries: Arc<OwnEntries<D::Known>>,
    reads: Reads<Seen>,
    /// The encoded namespace, which is the first part of the paths of queues.
    namespace: String,
    /// What the store promises, as of the first connection. A later connection, perhaps to another server, does not change this.
    characteristics: Characteristics,
    /// Bounds one request inside `gone` or `changed`; no answer in time is `Unavailable`.
    pub(crate) patience: Duration,
}

impl<D: Dialect> SqlStore<D> {
    /// Connects, and fails if the server, its version or our tables there cannot be used.
    pub(crate) async fn connect(
        servers: Servers,
        dialect: D,
        settings: &Settings,
    ) -> Result<Arc<dyn Store>> {
        let patience = patience(settings);
        let namespace = key::encode(&settings.namespace);
        let connections = Connections::new(Client::new(servers, dialect), settings, patience);
        let connections = Arc::new(connections);
        let first = connections.first().await?;
        Ok(Arc::new(Self {
            sessions: Arc::new(OpenSessions::new(Arc::clone(&connections), namespace.clone())),
            connections,
            entries: Arc::default(),
            reads: Reads::default(),
            namespace,
            characteristics: characteristics::<D>(D::promises(&first)),
            patience,
        }))
    }

    pub(crate) fn dialect(&self) -> &D {
        &self.connections.link.dialect
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.connections.rotation.epoch()
    }

    /// The queue's key in the database: `<namespace>/<kind>/<name>`.
    fn path(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}", self.namespace, queue.kind(), queue.encoded())
    }

    /// Forgets one of our own entries, and what it waited for.
    fn forget(&self, entry: &EntryId) {
        D::waits(self, entry, None);
        self.entries.remove(entry);
    }
}

fn characteristics<D: Dialect>(promises: Promises) -> Characteristics {
    Characteristics {
        scope: Scope::Hosts,
        liveness: Liveness::Lease,
        loss_detection: D::DESCRIPTOR.loss_detection,
        survives_restart: promises.survives_restart,
        survives_power_loss: promises.survives_power_loss,
        survives_failover: promises.survives_failover,
        fifo: true,
        fencing_survives_data_loss: true,
        early_expiry: Some("the server's clock is set forward"),
        partition_overlap: promises.partition_overlap,
        max_plain_name: 200,
        min_ttl: None,
    }
}

impl<D: Dialect> Store for SqlStore<D> {
    fn scheme(&self) -> &'static str {
        D::DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        self.characteristics.clone()
    }
}

/// A digest of the statements of a schema, without comments and blanks: whoever changes a statement has to change the schema's
/// version as well, or two builds of the library would call each other's functions.
#[cfg(test)]
pub(crate) fn digest(schema: &str) -> String {
    use sha2::{Digest as _, Sha256};

    let lines = schema.lines().map(|line| line.split("-- ").next().unwrap_or_default());
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    data_encoding::HEXLOWER.encode(&Sha256::digest(words.join(" ").as_bytes())[..8])
}
