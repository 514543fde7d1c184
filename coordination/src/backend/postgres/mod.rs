//! `postgres://user@host/database`: many hosts, over one PostgreSQL server and its replicas.
//!
//! # How it works
//!
//! The store has ordinary tables in a schema of their own, and a function there for each step of the protocol (`enter`, `leave`,
//! `renew`, …). A step is one statement, one transaction and one round trip. A function that adds an entry to a queue or removes
//! one locks the queue's row first, so that the transactions commit in the order of the entries' numbers. Row locks are held only
//! during such a transaction, and no step needs anything that an earlier one has left on its connection. So the store works through
//! a pooler that gives each transaction another connection, and a broken connection loses nothing.
//!
//! A session is a row with the end of its lease, on the server's clock. An entry whose session's lease has run out still blocks,
//! until a function that comes across it marks the session as over, under the lock of the session's row, and removes the entry. A
//! heartbeat either gets that lock first and extends the lease, or is told that the session is over. Other entries of sessions that
//! are over are removed a few at a time by heartbeats and reads. An entry's number is one more than the last in its queue, and at
//! least the time in microseconds. It is the fencing token, and is committed before the client gets it.
//!
//! When an entry leaves a queue, its transaction notifies the entries that it blocked, each on the channel of the client that owns
//! it (`NOTIFY`). The message says whether anything else blocks that entry; if nothing does, the client need not ask the server. A
//! message may be lost, and a pooler may swallow all of them. So waiters also ask the server when the lease of the entry that they
//! wait for may be over, and at least once in every `min(T, 5 s)`. Nothing is sent on a queue's channel unless somebody listens to
//! it. All this goes over one connection per coordinator.
//!
//! A client that gives up a statement before its answer sends nothing more on that connection. The server may carry out the
//! statement late. So each connection has a number, and the functions reject calls of a session that come on an older connection
//! than the newest one that the session has used. After each new connection, the session's entries that the client does not know of
//! are removed: a replica that took over may have entries that were left already.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients and of the server: what a call has changed is on the disk when it is
//! answered, whatever `synchronous_commit` says elsewhere; `fsync` and `full_page_writes` have to be on. With
//! `synchronous_standby_names` they hold over fail-over to a replica that has confirmed; without it, that replica may lack the
//! newest grants, and two clients may hold a lock. Tokens go on rising, even after a loss of all data, as long as the server's
//! clock was not set back. If that clock is set forward, sessions end early by as much: holders learn it with their next heartbeat,
//! and fencing protects the resource until then. After a holder has crashed, the next waiter is granted the lock when the holder's
//! lease has run out.
//!
//! `coordination_fence(name, token)` is for a transaction of the holder's own in the same database, before its writes. It fails
//! unless the token is that of a current holder. It locks the row of the entry, so that nobody else gets the lock until this
//! transaction is over, even if the session ends before that.
//!
//! # Requirements
//!
//! PostgreSQL 12 or newer. The role that connects first needs the right to create the schema, or to create tables and functions in
//! it if it exists. Other roles need `USAGE` on the schema and `SELECT, INSERT, UPDATE, DELETE` on its tables.
//!
//! # URL options
//!
//! The path is the database; without one it has the user's name. If there are several hosts, they are tried in random order until
//! one is found that can be written to.
//!
//! * `schema`: the schema with the tables and functions; `coordination` by default.
//! * `sslmode`: `verify-full`, or `disable`. The default is `verify-full`, or `disable` if all hosts are the local host and no
//!   other option is for TLS. Other modes are refused.
//! * `target_session_attrs`: `read-write`, which is always in force.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod client;
mod config;
mod database;
mod error;
mod link;
mod statement;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use self::client::{Connection, Postgres};
use self::config::Config;
use super::{EntryId, Mode, SessionId, Store};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::in_time;
use crate::backend::server::notifications::Wait;
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::server::sql::{
    self, Answer, Argument, Before, Call, Connections, Dialect, Promises, Row as _, SqlStore,
};
use crate::characteristics::{Durability, LossDetection};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Host, UrlOption};

/// What is known of the store before a connection is made.
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

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        let Self { servers, database, schema } = *self;
        SqlStore::connect(servers, Postgres::new(database, schema), settings).await
    }
}

impl Dialect for Postgres {
    type Connection = Connection;
    type Row = Row;
    /// The wait for the entry that blocks our own one, if there is one.
    type Known = Option<Wait>;
    type Following = watching::Following;

    const DESCRIPTOR: &'static Descriptor = &DESCRIPTOR;
    /// The server carries out the statements of a connection one after the other, each with its commit, so a heartbeat waits for
    /// all that were sent before it.
    const IN_FLIGHT: usize = 4;
    const SECURE: &'static str = "sslmode=verify-full";
    const WANTS_TLS: &'static str = "the server wants TLS: give `sslmode=verify-full`";

    async fn connect(
        connections: &Arc<Connections<Self>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> Result<Connection, Failure> {
        Connection::make(connections, place, epoch, credentials).await
    }

    /// An urgent call goes on the same connection; it has not waited for one of the [`IN_FLIGHT`](Self::IN_FLIGHT) slots.
    async fn carry_out(
        &self,
        connection: &Connection,
        call: &Call,
        _is_urgent: bool,
    ) -> Result<Vec<Row>, Failure> {
        connection.call(self, call).await
    }

    fn promises(connection: &Connection) -> Promises {
        let server = connection.server;
        Promises {
            survives_restart: Durability::Yes,
            survives_power_loss: server.survives_power_loss(),
            survives_failover: server.survives_failover(),
            partition_overlap: server.partition_overlap(),
        }
    }

    async fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<Self::Known>,
    ) -> Result<bool> {
        // A call removes only a limited number of entries, so that it does not take long, and answers `more` if some are left.
        loop {
            let known = own.of(session).iter().map(|entry| entry.as_str().into()).collect();
            let call = Call::new("renew", "settle").of(session).with(Argument::Ids(known));
            let asking = connections.run_urgently(&call);
            match in_time(connections.patience, asking).await?.status().as_str() {
                "more" => {}
                status => return Ok(status == "ok"),
            }
        }
    }

    async fn read(store: &SqlStore<Self>, path: &str) -> Result<(Answer<Row>, Option<u64>)> {
        let (answer, count) = read_once(store, path).await?;
        let mut is_due = true;
        for row in &answer.rows {
            // Only the queue's own row, which has no entry's id, says whether expired entries have to be removed (`tend`).
            if row.bytes_or_null("list", "id")?.is_none() {
                is_due = row.flag("list", "is_due")?;
            }
        }
        if !is_due {
            return Ok((answer, count));
        }
        store.connections.run(&Call::new("list", "tend").bytes(path)).await?;
        read_once(store, path).await
    }

    fn tidy(store: &SqlStore<Self>) {
        let connections = Arc::clone(&store.connections);
        tokio::spawn(async move { watching::sweep(&connections).await });
    }

    fn is_turn(&self, path: &str, seq: u64) -> bool {
        self.hub.take_turn(path, seq)
    }

    fn waits(store: &SqlStore<Self>, entry: &EntryId, before: Option<Before>) {
        watching::waits(store, entry, before);
    }

    fn at_most(&self, recheck: Duration) -> Duration {
        watching::at_most(self, recheck)
    }

    async fn gone(
        store: &SqlStore<Self>,
        path: &str,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        watching::gone(store, path, seq, waiter, recheck).await
    }

    async fn follow(store: &SqlStore<Self>, path: &str) -> Result<Self::Following> {
        watching::Following::begin(store, path).await
    }

    async fn moved(following: &mut Self::Following, count: u64) {
        following.moved(count).await;
    }
}

/// Reads the queue. The number is that of the last message on the queue's channel before the read, so that a change during the read
/// counts as a later one.
async fn read_once(store: &SqlStore<Postgres>, path: &str) -> Result<(Answer<Row>, Option<u64>)> {
    let count = store.dialect().hub.count(path, store.epoch());
    let answer = store.connections.run(&Call::new("list", "read").bytes(path)).await?;
    Ok((answer, count))
}

impl sql::Row for Row {
    fn bytes_or_null(&self, operation: &'static str, name: &str) -> Result<Option<Vec<u8>>> {
        statement::column(self, operation, name)
    }

    fn signed(&self, operation: &'static str, name: &str) -> Result<Option<i64>> {
        statement::column(self, operation, name)
    }

    fn flag(&self, operation: &'static str, name: &str) -> Result<bool> {
        statement::column(self, operation, name)
    }

    fn status(&self) -> Option<String> {
        self.try_get("status").ok()
    }
}
