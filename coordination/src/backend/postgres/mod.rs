//! `postgres://user@host/database`: many hosts, over one PostgreSQL server and its replicas.
//!
//! # How it works
//!
//! Ordinary tables in a schema of their own, and a function there for each step: one statement, which is one transaction and
//! one round trip. Whoever enters a queue or leaves it locks the queue's row first, so that the order of commits is that of the
//! numbers. Locks of the database are held for no longer than such a step takes: so everything works through a pooler that gives
//! each transaction another connection, and survives that connections come and go.
//!
//! A session is a row with the end of its lease on the server's clock. Whoever meets one whose time has passed ends it, under
//! the lock of its row, before its entries count for nothing; a heartbeat is in time, or finds that the session is over. What
//! the dead have left is removed bit by bit in passing. A number is one more than the last in its queue, and at least the time
//! in microseconds; it is the fencing token, and committed before it is told.
//!
//! Whoever leaves a queue tells those whom he kept waiting, each on the channel of its process (`NOTIFY`), and says whether
//! their turn has come, which spares them a request. A message may be lost, and a pooler may swallow all of them: so waiters
//! look themselves when the lease of what they wait for may be over, and at least once in every `min(T, 5 s)`. Nothing is told
//! where nobody waits. All this goes over one connection per coordinator.
//!
//! A statement that is given up without its answer is the last one on its connection. It may be carried out late: each
//! connection has a number, and the functions refuse what comes on an older one than the newest that was heard of for the
//! session. On each new connection the client says which entries it knows, and others of its session are removed: a replica
//! that took over may have some that were left.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients and of the server: a step is on the disk when it is answered, whatever
//! `synchronous_commit` says elsewhere; `fsync` and `full_page_writes` have to be on. With `synchronous_standby_names` they hold
//! over fail-over to a replica that has confirmed; without, the newest grants may be forgotten, and two may hold. Tokens go on
//! rising, also over loss of all data, as long as the server's clock was not set back. Where that clock is set forward, sessions
//! end early by as much: holders learn it with their next heartbeat, and fencing covers the rest. A crashed holder is followed
//! within its lease.
//!
//! What no other store has: `coordination_fence(name, token)`, to be called in a transaction of the holder's own in the same
//! database before its writes. It fails unless the token is that of a holder, and locks the row of the entry: the lock stays
//! where it is until the transaction is over.
//!
//! # Requirements
//!
//! PostgreSQL 12 or newer. Who connects first needs the right to make the schema; or its owner has made it so, and the others
//! have `USAGE` on it and `SELECT, INSERT, UPDATE, DELETE` on its tables.
//!
//! # URL options
//!
//! The path is the database; without one it has the user's name. Several hosts are tried in random order, and the one is used
//! that can be written to.
//!
//! * `schema`: in which the tables are.
//! * `sslmode`: `verify-full`, or `disable`, which is the default for this host only. Others are refused.
//! * `target_session_attrs`: `read-write`, which it is anyway.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod client;
mod config;
mod database;
mod entries;
mod entry;
mod error;
mod link;
mod open_sessions;
mod sessions;
mod statement;
mod values;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::client::{Client, Connections, channel_of};
use self::config::Config;
use self::database::Server;
use self::entry::OwnEntries;
use self::open_sessions::OpenSessions;
use super::{SessionId, Store};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::notifications::{Subscriptions, Told};
use crate::backend::server::patience;
use crate::backend::server::reads::Reads;
use crate::characteristics::{Characteristics, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::Result;
use crate::key::{self, QueueKey};
use crate::url::{Authority, UrlOption};

/// What is known of the store before it is asked.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "postgres",
    options: &[
        UrlOption::shown("schema"),
        UrlOption::shown("sslmode"),
        UrlOption::shown("target_session_attrs"),
        UrlOption::hidden("ca"),
        UrlOption::hidden("cert"),
        UrlOption::hidden("key"),
        UrlOption::shown("server_name"),
        UrlOption::hidden("password_file"),
    ],
    authority: Authority::Hosts,
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: a namespace in a schema of a database.
pub(crate) struct Postgres {
    connections: Arc<Connections>,
    hub: Arc<Subscriptions>,
    sessions: Arc<OpenSessions>,
    entries: Arc<OwnEntries>,
    reads: Reads<Told>,
    /// As a part of paths.
    namespace: String,
    /// As it was found at first.
    server: Server,
    /// How long one read may take within a wait.
    patience: Duration,
}

impl Postgres {
    /// Connects, and asks who answers.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = patience(settings);
        let namespace = key::encode(&settings.namespace);
        let hub = Arc::new(Subscriptions::new("", "own"));
        let channel = channel_of(&SessionId::random().to_string());
        let client = Client::new(config, Arc::clone(&hub), channel);
        let connections = Arc::new(Connections::new(client, settings, patience));
        let server = connections.first().await?.server;
        Ok(Self {
            sessions: Arc::new(OpenSessions::new(Arc::clone(&connections), namespace.clone())),
            connections,
            hub,
            entries: Arc::default(),
            reads: Reads::default(),
            namespace,
            server,
            patience,
        })
    }

    fn epoch(&self) -> u64 {
        *self.connections.epochs().borrow()
    }

    /// What a queue is called in the database.
    fn path(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}", self.namespace, queue.kind(), queue.encoded())
    }

    /// The name's part of a path.
    fn segment(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        path.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// Text of our own, which is kept as bytes.
fn text_of(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| statement::corrupt("read"))
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Postgres::connect(*self, settings).await?))
    }
}

impl Store for Postgres {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: crate::Durability::Yes,
            survives_power_loss: self.server.survives_power_loss(),
            survives_failover: self.server.survives_failover(),
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: Some("the server's clock is set forward"),
            partition_overlap: self.server.partition_overlap(),
            max_plain_name: 200,
            min_ttl: None,
        }
    }
}
