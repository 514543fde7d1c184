//! What stores have in common that keep their queues in the tables of an SQL server: PostgreSQL and MySQL.
//!
//! Each step is one call of a function or procedure in the database, which is one transaction and one round trip. Which calls
//! there are, what they are given and what is made of their answers is the same everywhere, and stands here. A store of this kind
//! is a [`Dialect`]: how a connection is made, how a call is written down and a row read, and how those who wait hear of what
//! happens.

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

/// What is one server's own.
pub(crate) trait Dialect: Sized + Send + Sync + 'static {
    /// To one server, under one number; it is made and given up as a whole.
    type Connection: Send + Sync + 'static;
    type Row: Row;
    /// What is known of an entry of ours besides.
    type Known: Clone + Default + Send;
    /// Somebody hears of what happens in a queue for as long as this is kept.
    type Following: Send;

    const DESCRIPTOR: &'static Descriptor;
    /// How many calls may be under way at a time.
    const IN_FLIGHT: usize;
    /// What a URL has to say for TLS.
    const SECURE: &'static str;
    /// What to say where a server wants TLS, and we do not speak it.
    const WANTS_TLS: &'static str;

    /// Makes a connection of this number.
    fn connect(
        connections: &Arc<Connections<Self>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Has a call carried out, which waits for no other if it is urgent.
    fn carry_out(
        &self,
        connection: &Self::Connection,
        call: &Call,
        is_urgent: bool,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failure>> + Send;

    /// What the server promises, as it was found when this connection was made.
    fn promises(connection: &Self::Connection) -> Promises;

    /// Removes what the server has of entries that were entered on older connections and that are not known to be our own; whether
    /// that is all of them.
    fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<Self::Known>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads a queue, and tells as of which number of its changes; `None`: nobody hears of those.
    fn read(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<(Answer<Self::Row>, Option<u64>)>> + Send;

    /// A heartbeat is about to be sent, which waits for nothing that is done here.
    fn tidy(_store: &SqlStore<Self>) {}

    /// Whether the server has told just now that nothing blocks this entry.
    fn is_turn(&self, _path: &str, _seq: u64) -> bool {
        false
    }

    /// What an entry of ours stands behind, as far as anybody knows; `None`: nothing.
    fn waits(_store: &SqlStore<Self>, _entry: &EntryId, _before: Option<Before>) {}

    /// We have changed a queue, or in it an entry that may block nothing any more.
    fn touched(&self, _path: &str, _entry: Option<u64>) {}

    /// Whoever waits looks himself at least so often.
    fn at_most(&self, recheck: Duration) -> Duration {
        recheck
    }

    /// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode, or it is time to look.
    fn gone(
        store: &SqlStore<Self>,
        path: &str,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Begins to follow a queue.
    fn follow(
        store: &SqlStore<Self>,
        path: &str,
    ) -> impl Future<Output = Result<Self::Following>> + Send;

    /// Resolves when the number of changes is another one than this, or something may have been missed.
    fn moved(following: &mut Self::Following, count: u64) -> impl Future<Output = ()> + Send;
}

/// The places, and the connection in use.
pub(crate) type Connections<D> = generic::Connections<Client<D>>;

/// What a connection is made with.
pub(crate) struct Client<D> {
    pub(crate) servers: Servers,
    pub(crate) dialect: D,
}

/// What a server promises.
pub(crate) struct Promises {
    pub(crate) survives_restart: Durability,
    pub(crate) survives_power_loss: Durability,
    pub(crate) survives_failover: Durability,
    /// Why two may hold while servers are cut off from each other.
    pub(crate) partition_overlap: Option<&'static str>,
}

/// An entry before one of ours, which waits for it.
pub(crate) struct Before {
    pub(crate) path: String,
    pub(crate) seq: u64,
    /// Of ours.
    pub(crate) mode: Mode,
    /// Of the connection on which the server said so.
    pub(crate) epoch: u64,
    /// Until when it has its lease.
    pub(crate) until: Instant,
}

/// As of when a queue was read.
#[derive(Clone, Copy)]
struct Seen {
    /// The number of its changes; `None`: nobody heard of them.
    count: Option<u64>,
    /// When the first of its leases may be over.
    expires: Option<Instant>,
}

/// An end that is looked for at its very moment may not have come yet.
pub(crate) const LITTLE: Duration = Duration::from_millis(2);

/// The backend: a namespace in a database.
pub(crate) struct SqlStore<D: Dialect> {
    pub(crate) connections: Arc<Connections<D>>,
    sessions: Arc<OpenSessions<D>>,
    pub(crate) entries: Arc<OwnEntries<D::Known>>,
    reads: Reads<Seen>,
    /// As a part of paths.
    namespace: String,
    /// As it was found at first.
    characteristics: Characteristics,
    /// How long one read may take within a wait.
    pub(crate) patience: Duration,
}

impl<D: Dialect> SqlStore<D> {
    /// Connects, and asks who answers.
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

    /// What a queue is called in the database.
    fn path(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}", self.namespace, queue.kind(), queue.encoded())
    }

    /// Nothing is known of an entry any more, which is none of ours from here on.
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
