//! `postgres://user@host/database`: locks for processes on many hosts, kept by a PostgreSQL server, which may have replicas.
//!
//! # How it works
//!
//! The store consists of tables in a schema of their own, and of a function in that schema for each step of the protocol (`enter`,
//! `leave`, `renew`, …), which `server/sql/entries.rs` describes. A step is one statement, one transaction and one round trip. A
//! function that adds or removes an entry locks the row of the entry's queue first. So transactions that change one queue run one
//! after the other, and commit in the order of the entries' numbers.
//!
//! Row locks last only until the end of such a transaction, and a step needs nothing that an earlier step has left on its
//! connection. So the store works through a pooler that runs each transaction on another server connection, and nothing is lost if
//! a connection breaks. Where the connection leads to the server itself, the statements of steps that are called often are prepared
//! on it; through a pooler they never are (`prepared.rs`).
//!
//! A session is a row with the time at which its lease ends, by the server's clock. When the lease has run out, the session's
//! entries still block others until a function finds one of them. The function then locks the session's row, marks the session as
//! over, and removes the entry. If a heartbeat of the session comes at the same time, the row's lock decides: if the heartbeat
//! locks the row first, it extends the lease; if the function locks the row first, the heartbeat is told that the session is over.
//! Further entries of sessions that are over are removed a few at a time by reads, and by statements that clients send if a heartbeat
//! has found such a session.
//!
//! An entry's number is one more than the last number in its queue, and at least the time in microseconds. It is the fencing token,
//! and is committed before the client gets it.
//!
//! When an entry leaves a queue, the transaction sends a message (`NOTIFY`) for each entry that the leaving entry blocked, on the
//! channel of the client that owns the blocked entry. The message says whether anything else blocks that entry. If nothing does,
//! the client has the lock without another request, unless its own deadline has passed by then, or the message came on a connection
//! that was given up: that server may have been replaced. A message may be lost, and behind a pooler no messages come. So waiting clients also ask the server when the lease of the entry that they wait for may be over, and
//! at least once in every `min(T, 5 s)`, where T is the lease; behind a pooler once a second, and more often at first. There a client
//! also tells itself of its own changes. On a queue's own channel, changes are published only while some
//! client listens to it. Calls and messages of a coordinator share one connection.
//!
//! If a client gives up a statement before its answer has come, it sends nothing more on that connection, and makes another. The
//! server may carry out the statement later. So each connection has a number, and the functions reject a call if the server has
//! already carried out a call of its session that came on a newer connection. After each new connection, the client has the server
//! remove those entries of its session that the client does not know of: a replica that took over may still have entries that were
//! removed before. An entry whose `enter` was not answered yet counts as known.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients and of the server. What a call has changed is on the disk when the call
//! is answered: the functions turn on `synchronous_commit` themselves, but `fsync` and `full_page_writes` have to be on at the
//! server. With `synchronous_standby_names`, exclusion, order and tokens also hold over a fail-over to a replica that has confirmed
//! the commits. Without it, a replica that takes over may lack the newest grants, and two clients may hold the same lock.
//!
//! Tokens rise even over a loss of all data, as long as the server's clock was not set back. If the server's clock is set forward,
//! or a server takes over whose clock is ahead, leases end earlier by that amount: a holder learns that its session is over with
//! its next heartbeat, and until then the fencing token protects the resource. If a holder crashes, the next waiter gets the lock
//! when the holder's lease has run out.
//!
//! A holder whose own data are in the same database can call `coordination_fence(name, token)` in its own transaction, before its
//! writes. The function fails unless the token is that of a current holder. It locks the row of the holder's entry, so that no
//! other client gets the lock before this transaction ends, even if the holder's session ends earlier.
//!
//! # Requirements
//!
//! PostgreSQL 13 or newer. The role that connects first needs the right to create the schema; or, if the schema exists, the right
//! to create tables and functions in it. Other roles need `USAGE` on the schema and `SELECT, INSERT, UPDATE, DELETE` on its tables.
//!
//! # URL options
//!
//! The path is the name of the database; without a path, it is the user's name. If there are several hosts, they are tried in
//! random order until one is found that can be written to.
//!
//! * `schema`: the schema with the tables and functions; `coordination` by default.
//! * `sslmode`: `verify-full` or `disable`; other modes are refused. The default is `disable` if all hosts are the local host and
//!   the URL has no other option for TLS, and otherwise `verify-full`.
//! * `target_session_attrs`: `read-write` or `primary`. Neither changes anything, because a server that can be written to is always
//!   required.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if that is not the name of the host in the URL.
//! * `password_file`: the path of a file that has the password, instead of a password in the URL.

mod client;
mod config;
mod database;
mod error;
mod link;
mod prepared;
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
use crate::backend::server::notifications::Expected;
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::server::sql::{
    self, Answer, Argument, Before, Call, Connections, Dialect, Freed, Promises, Row as _, SqlStore,
};
use crate::characteristics::{Durability, LossDetection, ServerInfo};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Host, UrlOption};

/// The options of the URL, and what the library knows of the store before a connection is made.
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
    /// For each entry of ours: the wait for the end of the entry that blocks it; `None`: no entry is known to block it.
    type Known = Option<Expected>;
    type Following = watching::Following;

    const DESCRIPTOR: &'static Descriptor = &DESCRIPTOR;
    /// The server carries out the statements of one connection one after the other, each with its commit. A heartbeat waits for all
    /// statements that were sent before it. So only a few may be in flight.
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

    /// There is only one connection, so an urgent call is sent on it like any other. The urgent call is faster only because it has
    /// not waited for one of the [`IN_FLIGHT`](Self::IN_FLIGHT) slots before.
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

    fn server_info(connection: &Connection) -> ServerInfo {
        connection.server.info()
    }

    async fn settle(
        connections: &Arc<Connections<Self>>,
        session: SessionId,
        own: &OwnEntries<Self::Known>,
    ) -> Result<bool> {
        // Each call of `settle` removes a limited number of entries, so that it does not take long. It returns `more` if entries
        // are left to be removed, and `locked` if other transactions have locked some of them.
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
            // The row without an entry's id is the one of the queue itself. Only that row says whether `tend` has to be called and
            // the queue has to be read again after it. `tend` removes expired entries, and has changes of the queue published.
            if row.bytes_or_null("list", "id")?.is_none() {
                is_due = row.flag("list", "is_due")?;
            }
        }
        if !is_due {
            return Ok((answer, count));
        }
        store.connections.run_to_end(Call::new("list", "tend").bytes(path)).await?;
        read_once(store, path).await
    }

    fn tidy(store: &SqlStore<Self>) {
        let connections = Arc::clone(&store.connections);
        tokio::spawn(async move { watching::sweep(&connections).await });
    }

    fn is_due(heartbeat: &Row) -> Result<Option<bool>> {
        let all_times = heartbeat.flag("renew", "all_times")?;
        Ok(heartbeat.flag("renew", "is_due")?.then_some(all_times))
    }

    fn is_turn(&self, path: &str, seq: u64, epoch: u64) -> bool {
        self.hub.take_turn(path, seq).is_some_and(|turn| turn.epoch == epoch)
    }

    fn waits(store: &SqlStore<Self>, entry: &EntryId, before: Option<Before>) {
        watching::waits(store, entry, before);
    }

    fn touched(&self, path: &str, epoch: u64, freed: Option<Freed>) {
        watching::touched(self, path, epoch, freed);
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
        is_ours: bool,
    ) -> Result<()> {
        watching::gone(store, path, (seq, is_ours), waiter, recheck).await
    }

    async fn follow(store: &SqlStore<Self>, path: &str) -> Result<Self::Following> {
        watching::Following::begin(store, path).await
    }

    async fn moved(following: &mut Self::Following, count: u64) {
        following.moved(count).await;
    }
}

/// Reads the queue once. Also returns the number of the last message that had come on the queue's channel before the read. If the
/// queue changes during the read, the message about that has a higher number, so `changed` resolves, and the caller reads again.
async fn read_once(store: &SqlStore<Postgres>, path: &str) -> Result<(Answer<Row>, Option<u64>)> {
    let count = store.dialect().hub.count(path, store.epoch());
    let answer = store.connections.run_to_end(Call::new("list", "read").bytes(path)).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::server::notifications::Wait;

    #[test]
    fn a_turn_is_taken_on_the_connection_in_use_only() {
        let postgres = Postgres::new("d".to_owned(), config::Schema::of_tests("coordination"));
        let told = |epoch| postgres.told(epoch, &postgres.channel, "a/lock/x 6 exclusive 7 free");
        told(1);
        assert!(!postgres.is_turn("a/lock/x", 7, 2), "a server that was left said so");
        told(2);
        assert!(postgres.is_turn("a/lock/x", 7, 2));
        assert!(!postgres.is_turn("a/lock/x", 7, 2), "once only");
    }

    #[test]
    fn the_name_of_the_own_channel_is_in_no_text_that_is_logged() {
        let postgres = Postgres::new("d".to_owned(), config::Schema::of_tests("coordination"));
        let (_following, _) = postgres.hub.follow("a/lock/x", 1);
        let (own, logged) = postgres.statements("LISTEN", &postgres.hub.channels());
        assert_eq!(own, Some(format!("LISTEN \"{}\";", postgres.channel)));
        assert!(logged.starts_with("LISTEN \"coordination:"), "{logged}");
        assert!(!logged.contains(&postgres.channel), "{logged}");
    }

    #[test]
    fn behind_a_pooler_a_client_tells_itself_of_its_changes() {
        let postgres = Postgres::new("d".to_owned(), config::Schema::of_tests("coordination"));
        let wait = |mode| Wait { queue: "a/lock/x".to_owned(), seq: 6, mode };
        let is_over = |mode| postgres.hub.wait(&wait(mode), 1).borrow().is_over();
        let are_over = || [Mode::Exclusive, Mode::Shared].map(is_over);
        let touched = |freed| postgres.touched("a/lock/x", 1, Some(freed));
        assert_eq!(are_over(), [false; 2]);
        touched(Freed::Gone(6));
        assert_eq!(are_over(), [false; 2], "the server tells of it");
        postgres.is_pooled.store(true, std::sync::atomic::Ordering::Relaxed);
        touched(Freed::Shared(6));
        assert_eq!(are_over(), [false, true], "it still blocks exclusive ones");
        touched(Freed::Gone(6));
        assert_eq!(are_over(), [true; 2]);
    }
}
