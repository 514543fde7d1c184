//! What PostgreSQL and MySQL have in common as stores: both keep their queues in the tables of an SQL server.
//!
//! Each operation of a store's traits is one call of a function (PostgreSQL) or procedure (MySQL) in the database: one transaction,
//! and one round trip. The names, arguments and results of these functions are the same on both servers, so this module makes the
//! calls for both. The protocol, which is the same on both servers too, is described at the head of `entries.rs`. A [`Dialect`] has
//! what differs: how to connect, how to write a call as SQL and read a row, and how waiters learn of changes.

mod answer;
mod call;
mod config;
mod connections;
mod entries;
mod finishing;
mod open_sessions;
mod sessions;
mod update;
mod values;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::answer::{Answer, Row, corrupt};
pub(crate) use self::call::{Argument, Call};
pub(crate) use self::config::{Modes, Servers};
pub(crate) use self::connections::Sent;
pub(crate) use self::finishing::{Sending, let_finish};
use self::open_sessions::OpenSessions;
use self::update::Update;
use super::connections::{self as generic, Failure};
use super::credentials::Credentials;
use super::own_entries::OwnEntries;
use super::patience;
use super::reads::Reads;
use super::updates::Updates;
use crate::backend::descriptor::Descriptor;
use crate::backend::{EntryId, Mode, SessionId, Store};
use crate::characteristics::{Characteristics, Durability, Liveness, Scope, ServerInfo};
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
    /// A subscription to the changes of one queue. It lasts at least until this value is dropped.
    type Following: Send;

    const DESCRIPTOR: &'static Descriptor;
    /// How many calls may be in flight at the same time.
    const IN_FLIGHT: usize;
    /// The URL option that turns TLS on, for messages.
    const SECURE: &'static str;
    /// The advice in the error if the server demands TLS and the URL has turned it off.
    const WANTS_TLS: &'static str;

    /// Connects to the server at `place`. `epoch` is the connection's number. Calls give this number to the server as their
    /// `generation`.
    fn connect(
        connections: &Arc<Connections<Self>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Sends a call and returns the rows of its answer. `is_urgent`: the call must not wait for the slots and connections that
    /// other calls use, because it is a heartbeat or asks, on MySQL, for all waiters of this process at once.
    fn carry_out(
        &self,
        connection: &Self::Connection,
        call: &Call,
        is_urgent: bool,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failure>> + Send;

    /// What survives a crash or a fail-over, according to the settings that the server had when this connection was made.
    fn promises(connection: &Self::Connection) -> Promises;

    /// What the server said of itself when this connection was made.
    fn server_info(connection: &Self::Connection) -> ServerInfo;

    /// Removes those entries of the session that were entered on older connections and are not in `own`. This client has left these
    /// entries. But after a fail-over, the new primary may lack the newest releases, and so still have the entries. Returns false
    /// if some of them could not be removed, because other transactions have locked their rows.
    fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<Self::Known>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads a queue. The number that is returned says how many changes of the queue this process knew of at the read, or a moment
    /// before. It is given to [`moved`](Self::moved) later, which resolves when the number has changed. `None`: this process is not
    /// subscribed to the queue's changes.
    fn read(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<(Answer<Self::Row>, Option<u64>)>> + Send;

    /// Called before each heartbeat, so that the dialect can drop what is not used any more. It must not block, because the
    /// heartbeat is sent only after it.
    fn tidy(_store: &SqlStore<Self>) {}

    /// Whether the answer to a heartbeat says that sessions are to be cleared up whose time has passed. `Some`: whether all of them
    /// are looked for, or only the latest. `None`: there are none, or the server has done it with the heartbeat.
    fn is_due(_heartbeat: &Self::Row) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Whether a notification has said, a moment ago, that nothing blocks our entry with this number. If so, the server need not be
    /// asked for the entry's position. Each notification is used only once, and only if it came on the connection of this epoch: the
    /// server of an earlier one may have been replaced, and may have ended sessions that live on at the new one.
    fn is_turn(&self, _path: &str, _seq: u64, _epoch: u64) -> bool {
        false
    }

    /// Notes which entry blocks our own entry `_entry`, so that a notification about the blocking entry finds its waiter. `None`:
    /// no blocking entry is known, or our entry does not wait any more.
    fn waits(_store: &SqlStore<Self>, _entry: &EntryId, _before: Option<Before>) {}

    /// Called after this client has changed a queue, so that waiters in this process learn of the change at once. `_epoch`: that of the
    /// connection in use before the change. `_freed`: the entry that may not block others any more.
    fn touched(&self, _path: &str, _epoch: u64, _freed: Option<Freed>) {}

    /// How long a waiter waits before it asks the server again. `recheck`: the longest time that the session allows for this.
    fn at_most(&self, recheck: Duration) -> Duration {
        recheck
    }

    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode. Meanwhile it asks the server at
    /// least once in every `recheck`, because a notification may be lost. It may also resolve when nothing has changed. This does
    /// no harm, because the caller always asks for the position of its own entry after this. `is_ours`: the entry is one of this
    /// client's own, so that [`touched`](Self::touched) tells of its end.
    fn gone(
        store: &SqlStore<Self>,
        path: &str,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
        is_ours: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Subscribes to the changes of a queue.
    fn follow(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<Self::Following>> + Send;

    /// Resolves when the number of the queue's changes is no longer `count`, which is the number that [`read`](Self::read)
    /// returned. Also resolves when a notification may have been lost.
    fn moved(following: &mut Self::Following, count: u64) -> impl Future<Output = ()> + Send;
}

/// The servers of the URL, and the connection in use.
pub(crate) type Connections<D> = generic::Connections<Client<D>>;

/// What is needed to make a connection: the servers of the URL, and the dialect that connects.
pub(crate) struct Client<D> {
    pub(crate) servers: Servers,
    pub(crate) dialect: D,
}

/// What survives a crash or a fail-over, according to the server's settings.
pub(crate) struct Promises {
    pub(crate) survives_restart: Durability,
    pub(crate) survives_power_loss: Durability,
    pub(crate) survives_failover: Durability,
    /// Why two clients may hold the same lock while servers are cut off from each other; `None`: they cannot.
    pub(crate) partition_overlap: Option<&'static str>,
}

/// An entry that this client has changed itself: it may not block others any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Freed {
    /// The entry with this number is gone.
    Gone(u64),
    /// The entry with this number is shared.
    Shared(u64),
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

/// What was known when a queue was last read. `changed` waits until this is out of date.
#[derive(Clone, Copy)]
struct Seen {
    /// The number of the queue's changes; `None`: this process was not subscribed to them.
    count: Option<u64>,
    /// When the first of the leases of the queue's entries ends, unless it is renewed.
    expires: Option<Instant>,
}

/// A waiter asks the server whether a lease has ended this long after the expected end of the lease. If the waiter asked exactly at
/// the expected end, the server might find the lease still running.
pub(crate) const LITTLE: Duration = Duration::from_millis(2);

/// The store: a namespace in a database.
pub(crate) struct SqlStore<D: Dialect> {
    pub(crate) connections: Arc<Connections<D>>,
    sessions: Arc<OpenSessions<D>>,
    pub(crate) entries: Arc<OwnEntries<D::Known>>,
    updates: Arc<Updates<Update, u64>>,
    reads: Reads<Seen>,
    /// The encoded namespace, which is the first part of the paths of queues.
    namespace: String,
    /// What the store promises, as found out on the first connection. It stays the same after later connections, which may lead to
    /// other servers.
    characteristics: Characteristics,
    server_info: ServerInfo,
    /// How long one request that `gone` or `changed` sends may take. If the answer takes longer, the request fails with
    /// `Unavailable`.
    pub(crate) patience: Duration,
}

impl<D: Dialect> SqlStore<D> {
    /// Connects. Fails if the server cannot be used, its version is not supported, or the tables that this library has there cannot
    /// be used.
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
            updates: Arc::default(),
            reads: Reads::default(),
            namespace,
            characteristics: characteristics::<D>(D::promises(&first)),
            server_info: D::server_info(&first),
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

    /// Forgets one of our own entries, and which entry blocked it.
    fn forget(&self, entry: &EntryId) {
        D::waits(self, entry, None);
        self.updates.forget(entry);
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
        early_expiry: Some(
            "the server's clock is set forward, or a fail-over leads to a server whose clock is ahead",
        ),
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

    fn server_info(&self) -> ServerInfo {
        self.server_info.clone()
    }
}

/// A digest of the statements of a schema, without comments and blanks. A test compares it with the known digest, to make sure that
/// whoever changes a statement also changes the schema's version. Otherwise two builds of the library with different functions
/// would call each other's functions.
#[cfg(test)]
pub(crate) fn digest(schema: &str) -> String {
    use sha2::{Digest as _, Sha256};

    let lines = schema.lines().map(|line| line.split("-- ").next().unwrap_or_default());
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    data_encoding::HEXLOWER.encode(&Sha256::digest(words.join(" ").as_bytes())[..8])
}
