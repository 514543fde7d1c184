//! `mysql://user@host/database`, `mariadb://…`: many hosts, over one MySQL or MariaDB server and its replicas.
//!
//! # How it works
//!
//! The store has ordinary tables in a database, and a procedure there for each step of the protocol (`enter`, `leave`, `renew`, …).
//! A step is one statement, one transaction and one round trip. A procedure that adds an entry to a queue or removes one locks the
//! queue's row first, so that the transactions commit in the order of the entries' numbers. Row locks are held only during such a
//! transaction. If the server rolls a step back because of a deadlock or a lock that it waited for too long, the step is sent
//! again, and the caller does not learn of it.
//!
//! A session is a row with the end of its lease, on the server's clock. An entry whose session's lease has run out still blocks,
//! until a procedure that comes across it marks the session as over, under the lock of the session's row, and removes the entry. A
//! heartbeat either gets that lock first and extends the lease, or is told that the session is over. Other entries of sessions that
//! are over are removed a few at a time by heartbeats and reads. An entry's number is one more than the last in its queue, and at
//! least the time in microseconds. It is the fencing token, and is committed before the client gets it.
//!
//! The server has no notifications. So each coordinator has one poll for all its waiters, over one connection: every 20 ms while
//! something happens in the queues in which they wait, and every 0.4 s when nothing has happened for a while. When an entry of the
//! coordinator itself leaves, its waiters are woken at once.
//!
//! A coordinator has three connections, which are made together and have one number. A client that gives up a statement before its
//! answer gives up all three. The server may carry out the statement late. So the procedures reject calls of a session that come on
//! connections with a lower number than the highest that the session has used. After each new connection, the session's entries
//! that the client does not know of are removed: a replica that took over may have entries that were left already.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients. They hold over a crash of the server's process if
//! `innodb_flush_log_at_trx_commit` is not 0, and over a loss of power if it is 1, and `sync_binlog` too, if there is a binary log.
//! They do not hold over a fail-over, because replicas are behind: the newest grants may be lost, and two clients may hold a lock.
//! Tokens go on rising, even after a loss of all data, as long as the server's clock was not set back. If that clock is set
//! forward, sessions end early by as much: holders learn it with their next heartbeat, and fencing protects the resource until
//! then. After a holder has crashed, the next waiter is granted the lock when the holder's lease has run out.
//!
//! `CALL coordination_fence(name, token)` is for a transaction of the holder's own in the same database, as its first statement. It
//! fails unless the token is that of a current holder. It locks the row of the entry, so that nobody else gets the lock until this
//! transaction is over, even if the session ends before that.
//!
//! # Requirements
//!
//! MariaDB 10.6 or newer, or MySQL 8.0 or newer, with only one server that is written to. The user that connects first needs the
//! rights to create tables and procedures. Other users need `SELECT, INSERT, UPDATE, DELETE` on the tables, and `EXECUTE`.
//!
//! # URL options
//!
//! The path is the database; without one it is `coordination`, which is created if it does not exist. If there are several hosts,
//! they are tried in random order until one is found that can be written to.
//!
//! * `ssl-mode`: `verify_identity`, or `disabled`. The default is `verify_identity`, or `disabled` if all hosts are the local host
//!   and no other option is for TLS. Other modes are refused.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if it is not the host.
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

/// How many entries one call of `settle` returns.
const BATCH: usize = 500;

/// What is known of the store before a connection is made.
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
    /// There is one slot for each connection for calls. So a call that finds both connections busy waits for a slot, and its time
    /// for an answer begins only when it is sent.
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
                // An entry of ours is put into `own` before it is entered. So an entry that is missing in `own` is not just being
                // entered.
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
        // Only the row of the queue itself has a number of changes; the rows of entries have NULL.
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
        // If the watch has ended, a change may have been missed, so this resolves, and the caller reads the queue.
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
