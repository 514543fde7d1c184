//! `mysql://user@host/database`, `mariadb://…`: locks for processes on many hosts, kept by a MySQL or MariaDB server, which may
//! have replicas.
//!
//! # How it works
//!
//! The store consists of tables in a database, and of a procedure there for each step of the protocol (`enter`, `leave`, `renew`,
//! …), which `server/sql/entries.rs` describes. A step is one statement, one transaction and one round trip. A procedure that adds
//! or removes an entry locks the row of the entry's queue first. So transactions that change one queue run one after the other, and
//! commit in the order of the entries' numbers. Row locks last only until the end of such a transaction. If the server rolls a step
//! back because of a deadlock, or because it waited for a lock too long, the step is sent again, and the caller does not notice.
//!
//! A session is a row with the time at which its lease ends, by the server's clock. When the lease has run out, the session's
//! entries still block others until a procedure finds one of them. The procedure then locks the session's row, marks the session as
//! over, and removes the entry. If a heartbeat of the session comes at the same time, the row's lock decides: if the heartbeat
//! locks the row first, it extends the lease; if the procedure locks the row first, the heartbeat is told that the session is over.
//! Further entries of sessions that are over are removed a few at a time by heartbeats and reads.
//!
//! An entry's number is one more than the last number in its queue, and at least the time in microseconds. It is the fencing token,
//! and is committed before the client gets it.
//!
//! The server has no notifications. So each coordinator asks the server again and again, by one query for all its waiters: every 20
//! ms while something changes in the queues in which they wait, and every 0.4 s when nothing has changed for a while. If an entry
//! of the same coordinator leaves, the coordinator's own waiters are woken at once.
//!
//! A coordinator has three connections, which are made together and have one number in common. If a client gives up a statement
//! before its answer has come, it gives up all three, and makes new ones with a higher number. The server may carry out the
//! statement later. So the procedures reject a call if the server has already carried out a call of its session that came with a
//! higher number. Whenever the client has made new connections, it has the server remove those entries of its session that the
//! client does not know of: a replica that took over may still have entries that were removed before. An entry whose `enter` was
//! not answered yet counts as known.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients. They hold over a crash of the server's process if
//! `innodb_flush_log_at_trx_commit` is not 0. They hold over a loss of power if `innodb_flush_log_at_trx_commit` is 1 and, with a
//! binary log, `sync_binlog` is 1 too. They do not hold over a fail-over: a replica that takes over may lack the newest grants, and
//! two clients may hold the same lock.
//!
//! Tokens rise even over a loss of all data, as long as the server's clock was not set back. If the server's clock is set forward,
//! or a server takes over whose clock is ahead, leases end earlier by that amount: a holder learns that its session is over with
//! its next heartbeat, and until then the fencing token protects the resource. If a holder crashes, the next waiter gets the lock
//! when the holder's lease has run out.
//!
//! A holder whose own data are in the same database can use `CALL coordination_fence(name, token)` as the first statement of its
//! own transaction. The procedure fails unless the token is that of a current holder. It locks the row of the holder's entry, so
//! that no other client gets the lock before this transaction ends, even if the holder's session ends earlier.
//!
//! # Requirements
//!
//! MariaDB 10.6 or newer, or MySQL 8.0 or newer. There may be replicas, but only one server that is written to. The user that
//! connects first needs the rights to create tables and procedures. Other users need `SELECT, INSERT, UPDATE, DELETE` on the
//! tables, and `EXECUTE` on the procedures.
//!
//! # URL options
//!
//! The path is the name of the database, which has to exist. Without a path, the database is `coordination`, which is created if it
//! does not exist. If there are several hosts, they are tried in random order until one is found that can be written to.
//!
//! * `ssl-mode`: `verify_identity` or `disabled`; other modes are refused. The default is `disabled` if all hosts are the local
//!   host and the URL has no other option for TLS, and otherwise `verify_identity`.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if that is not the name of the host in the URL.
//! * `password_file`: the path of a file that has the password, instead of a password in the URL.

mod client;
mod config;
mod database;
mod error;
mod link;
mod polls;
mod statement;
#[cfg_attr(not(feature = "_tls"), path = "no_tls.rs")]
mod tls;
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
    self, Answer, Call, Connections, Dialect, Freed, Promises, Row as _, SqlStore,
};
use crate::characteristics::{Durability, LossDetection, ServerInfo};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Host, UrlOption};

/// How many entries one call of the procedure `settle` returns at most.
const BATCH: usize = 500;

/// The options of the URL, and what the library knows of the store before a connection is made.
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
    /// As many as there are connections for calls. So if all of them are busy, a call waits before it is sent. The time within
    /// which its answer has to come begins only when the call is sent.
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
        let server = &connection.server;
        Promises {
            survives_restart: server.survives_restart(),
            survives_power_loss: server.survives_power_loss(),
            survives_failover: Durability::No,
            partition_overlap: server.partition_overlap(),
        }
    }

    fn server_info(connection: &Connection) -> ServerInfo {
        connection.server.info.clone()
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
                // Before this client enters an entry, it puts the entry into `own`. So if the server has an entry that is not in
                // `own`, no call of this client is about to enter it, and it can be removed.
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

    fn tidy(store: &SqlStore<Self>) {
        let connections = Arc::clone(&store.connections);
        tokio::spawn(async move { client::use_silent_lanes(&connections).await });
    }

    async fn read(store: &SqlStore<Self>, path: &str) -> Result<(Answer<Row>, Option<u64>)> {
        let answer = store.connections.run_to_end(Call::new("list", "read").bytes(path)).await?;
        // Only the row of the queue itself has a number of changes. In the rows of entries, this column is NULL.
        let changes = answer.rows.iter().map(|row| row.number_or_null("list", "changes"));
        let changes = changes.collect::<Result<Vec<_>>>()?.into_iter().flatten().next();
        Ok((answer, Some(changes.unwrap_or_default())))
    }

    fn touched(&self, path: &str, _epoch: u64, freed: Option<Freed>) {
        let entry = freed.map(|(Freed::Gone(seq) | Freed::Shared(seq))| seq);
        self.polls.touched(path, entry);
    }

    async fn gone(
        store: &SqlStore<Self>,
        path: &str,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
        _is_ours: bool,
    ) -> Result<()> {
        watching::gone(store, path, seq, waiter, recheck).await
    }

    async fn follow(store: &SqlStore<Self>, path: &str) -> Result<Self::Following> {
        Ok(store.dialect().polls.follow(path, &store.connections))
    }

    async fn moved(following: &mut Self::Following, count: u64) {
        // If the watch has ended, `wait_for` returns an error. A change may have been missed then, so this resolves too, and the
        // caller reads the queue.
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
