//! `mysql://user@host/database`, `mariadb://…`: many hosts, over one MySQL or MariaDB server and its replicas.
//!
//! # How it works
//!
//! Ordinary tables in a database, and a procedure there for each step: one statement, which is one transaction and one round
//! trip. Whoever enters a queue or leaves it locks the queue's row first, so that the order of commits is that of the numbers.
//! Locks of the database are held for no longer than such a step takes. Where the server undoes a step, as it was in the way of
//! others or they of it, the step is made again; no caller hears of that.
//!
//! A session is a row with the end of its lease on the server's clock. Whoever meets one whose time has passed ends it, under
//! the lock of its row, before its entries count for nothing; a heartbeat is in time, or finds that the session is over. What
//! the dead have left is removed bit by bit in passing. A number is one more than the last in its queue, and at least the time
//! in microseconds; it is the fencing token, and committed before it is told.
//!
//! The server tells nothing by itself. So each coordinator has one poll for all who wait, over one connection: every 20 ms while
//! something happens in what they wait for, and once in 0.4 s when nothing has happened for a while. Whoever leaves tells
//! the waiters of its own coordinator at once.
//!
//! A coordinator has three connections. A statement that is given up without its answer is the last one on all of them. It may
//! be carried out late: connections have a number, and the procedures refuse what comes on older ones than the newest that were
//! heard of for the session. On new connections the client says which entries it knows, and others of its session are removed:
//! a replica that took over may have some that were left.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients; over those of the server where `innodb_flush_log_at_trx_commit` is
//! not 0; and over a loss of power where it is 1, as `sync_binlog` has to be where there is a binary log. Over fail-over they do not hold, as
//! replicas are behind: the newest grants may be forgotten, and two may hold. Tokens go on rising, also over loss of all data, as
//! long as the server's clock was not set back. Where that clock is set forward, sessions end early by as much: holders learn it
//! with their next heartbeat, and fencing covers the rest. A crashed holder is followed within its lease.
//!
//! `CALL coordination_fence(name, token)` is for a transaction of the holder's own in the same database, as its first statement.
//! It fails unless the token is that of a holder, and locks the row of the entry: the lock stays where it is until the
//! transaction is over.
//!
//! # Requirements
//!
//! MariaDB 10.6 or newer, or MySQL 8.0 or newer, with one server that is written to. Who connects first needs the rights to make
//! tables and procedures; the others `SELECT, INSERT, UPDATE, DELETE` on the tables and `EXECUTE`.
//!
//! # URL options
//!
//! The path is the database; without one it is `coordination`, which is made if it is not there. Several hosts are tried in random
//! order, and the one is used that can be written to.
//!
//! * `ssl-mode`: `verify_identity`, or `disabled`, which is the default for this host only. Others are refused.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod client;
mod config;
mod database;
mod entries;
mod error;
mod link;
mod open_sessions;
mod polls;
mod sessions;
mod statement;
mod values;
mod watching;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use self::client::{Client, Connections};
use self::config::Config;
use self::database::Server;
use self::open_sessions::OpenSessions;
use self::polls::Polls;
use super::Store;
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::server::patience;
use crate::backend::server::reads::Reads;
use crate::characteristics::{Characteristics, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::Result;
use crate::key::{self, QueueKey};
use crate::url::{Authority, UrlOption};

/// What is known of the store before it is asked.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "mysql",
    options: &[
        UrlOption::shown("ssl-mode"),
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

/// The backend: a namespace in a database.
pub(crate) struct Mysql {
    connections: Arc<Connections>,
    polls: Arc<Polls>,
    sessions: Arc<OpenSessions>,
    entries: Arc<OwnEntries<()>>,
    /// The number of changes, and when the first of the leases may be over.
    reads: Reads<(u64, Option<Instant>)>,
    /// As a part of paths.
    namespace: String,
    /// As it was found at first.
    server: Server,
    /// How long one read may take within a wait.
    patience: Duration,
}

impl Mysql {
    /// Connects, and asks who answers.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = patience(settings);
        let namespace = key::encode(&settings.namespace);
        let connections = Connections::new(Client::new(config), settings, patience);
        let connections = Arc::new(connections);
        let server = connections.first().await?.server;
        Ok(Self {
            sessions: Arc::new(OpenSessions::new(Arc::clone(&connections), namespace.clone())),
            connections,
            polls: Arc::new(Polls::new(settings.ttl)),
            entries: Arc::default(),
            reads: Reads::default(),
            namespace,
            server,
            patience,
        })
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
        Ok(Arc::new(Mysql::connect(*self, settings).await?))
    }
}

impl Store for Mysql {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: self.server.survives_restart(),
            survives_power_loss: self.server.survives_power_loss(),
            survives_failover: crate::Durability::No,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: Some("the server's clock is set forward"),
            partition_overlap: self.server.partition_overlap(),
            max_plain_name: 200,
            min_ttl: None,
        }
    }
}
