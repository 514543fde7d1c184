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
    /// What it waits for.
    type Known = Option<Wait>;
    type Following = watching::Following;

    const DESCRIPTOR: &'static Descriptor = &DESCRIPTOR;
    /// The server carries out a connection's statements one after the other, each with its commit, and a heartbeat waits for
    /// those before it.
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

    /// One that is urgent goes on the same connection, before those that wait for a place there.
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
        // One call removes so many and no more.
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
            // The queue's own row, which alone says it, has no entry's id.
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

/// The queue, and the number of the last message that came of it before.
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
