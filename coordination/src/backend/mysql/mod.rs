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
mod error;
mod link;
mod polls;
mod statement;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::Row;
use tokio::sync::watch;

use self::client::{Connection, Mysql};
use self::config::Config;
use super::{EntryId, Mode, SessionId, Store};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::in_time;
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::server::sql::{
    self, Answer, Call, Connections, Dialect, Promises, Row as _, SqlStore,
};
use crate::characteristics::{Durability, LossDetection};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Host, UrlOption};

/// How many entries one call asks for.
const BATCH: usize = 500;

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

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        let Self { servers, database } = *self;
        SqlStore::connect(servers, Mysql::new(database, settings.ttl), settings).await
    }
}

impl Dialect for Mysql {
    type Connection = Connection;
    type Row = Row;
    type Known = ();
    type Following = watch::Receiver<u64>;

    const DESCRIPTOR: &'static Descriptor = &DESCRIPTOR;
    /// Whoever waits for a lane has sent nothing: so he waits here, and not with his time for the answer.
    const IN_FLIGHT: usize = client::CALLS;
    const SECURE: &'static str = "ssl-mode=verify_identity";
    const WANTS_TLS: &'static str = "the server wants TLS: give `ssl-mode=verify_identity`";

    async fn connect(
        connections: &Arc<Connections<Self>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> Result<Connection, Failure> {
        Connection::make(connections, place, epoch, credentials).await
    }

    async fn carry_out(
        &self,
        connection: &Connection,
        call: &Call,
        is_urgent: bool,
    ) -> Result<Vec<Row>, Failure> {
        connection.call(call, is_urgent).await
    }

    fn promises(connection: &Connection) -> Promises {
        let server = connection.server;
        Promises {
            survives_restart: server.survives_restart(),
            survives_power_loss: server.survives_power_loss(),
            survives_failover: Durability::No,
            partition_overlap: server.partition_overlap(),
        }
    }

    async fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<()>,
    ) -> Result<bool> {
        let ask =
            async |call: Call| in_time(connections.patience, connections.run_urgently(&call)).await;
        let mut at = (0, 0);
        let mut are_gone = true;
        loop {
            let call = Call::new("renew", "settle").of(session).number(at.0).number(at.1);
            let answer = ask(call.number(BATCH as u64)).await?;
            for row in &answer.rows {
                at = (row.number("renew", "queue")?, row.number("renew", "seq")?);
                let id = row.bytes("renew", "id")?;
                let id = EntryId::from_store(String::from_utf8_lossy(&id).into_owned());
                // What is known by now was known when it was entered.
                if own.own(&id).is_none_or(|own| own.session != session) {
                    let call = Call::new("renew", "settle_one").of(session);
                    are_gone &= ask(call.number(at.0).number(at.1)).await?.is_ok();
                }
            }
            if answer.rows.len() < BATCH {
                return Ok(are_gone);
            }
        }
    }

    async fn read(store: &SqlStore<Self>, path: &str) -> Result<(Answer<Row>, Option<u64>)> {
        let answer = store.connections.run(&Call::new("list", "read").bytes(path)).await?;
        // Only the queue's own row has them.
        let changes = answer.rows.iter().map(|row| row.number_or_null("list", "changes"));
        let changes = changes.collect::<Result<Vec<_>>>()?.into_iter().flatten().next();
        Ok((answer, Some(changes.unwrap_or_default())))
    }

    fn touched(&self, path: &str, entry: Option<u64>) {
        self.polls.touched(path, entry);
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
        Ok(store.dialect().polls.follow(path, &store.connections))
    }

    async fn moved(following: &mut Self::Following, count: u64) {
        // Where the watch has ended, whoever follows reads.
        let _ = following.wait_for(|changes| *changes > count).await;
    }
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
        self.get_opt("status").and_then(std::result::Result::ok)
    }
}
