//! Connections, and how a call is made on one.
//!
//! The server answers one statement at a time on a connection. So what all callers share is three of them, lanes, to one
//! server, which are made and given up together, under one number, their epoch: two for calls, and one for what waits for no
//! call, which are heartbeats and the poll for all waiters. A statement that is given up without its answer is the last one on
//! its lane (C3), and in its epoch: the server refuses what comes on a connection older than the newest one it has heard of, so
//! that it can do no harm, however late it is carried out.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use rand::RngExt;
use tokio::sync::{Mutex, MutexGuard};

use super::config::Database;
use super::database::{Server, join};
use super::error::{failure, is_undone};
use super::polls::Polls;
use super::statement::text_of;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::sql::{Call, Connections, Sent};
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// How many lanes there are for calls; one more is for what waits for none.
pub(super) const CALLS: usize = 2;
/// How often a step is made again that the server has undone for others. One that has waited for a lock for a second was
/// not in a deadlock; its caller gives up before that many seconds are over.
const REPEATED: usize = 30;
/// Before it is made again, at the most.
const APART: Duration = Duration::from_millis(10);

/// What all our connections have in common.
pub(super) struct Mysql {
    pub(super) database: Database,
    pub(super) polls: Arc<Polls>,
}

/// Connections to a server that can be written to.
pub(super) struct Connection {
    /// One whose statement was given up, or broke, has no connection any more.
    lanes: [Mutex<Option<Conn>>; CALLS + 1],
    /// Counts those that found no lane free.
    next: AtomicUsize,
    pub(super) server: Server,
    connections: Weak<Connections<Mysql>>,
    epoch: u64,
}

impl Mysql {
    /// For those whose lease is so long.
    pub(super) fn new(database: Database, lease: Duration) -> Self {
        Self { database, polls: Arc::new(Polls::new(lease)) }
    }
}

impl Connection {
    pub(super) async fn make(
        connections: &Arc<Connections<Mysql>>,
        place: (&Host, SocketAddr),
        epoch: u64,
        credentials: &Credentials,
    ) -> Result<Self, Failure> {
        let user = &connections.link.servers.user;
        let database = &connections.link.dialect.database;
        let mut first = super::link::open(user, place, credentials).await?;
        let (server, identity) = Server::greet(&mut first, database).await?;
        if !connections.has_connected() {
            Server::check_rights(&mut first).await?;
        }
        let another = async || {
            let mut conn = super::link::open(user, place, credentials).await?;
            join(&mut conn, database, &identity).await?;
            Ok::<_, Failure>(Mutex::new(Some(conn)))
        };
        let (second, third) = tokio::try_join!(another(), another())?;
        Ok(Self {
            lanes: [Mutex::new(Some(first)), second, third],
            next: AtomicUsize::new(0),
            server,
            connections: Arc::downgrade(connections),
            epoch,
        })
    }

    /// Makes a call.
    pub(super) async fn call(&self, call: &Call, is_urgent: bool) -> Result<Vec<Row>, Failure> {
        self.query(call.operation, &text_of(call, self.epoch), is_urgent).await
    }

    /// Has a statement carried out, again where the server has undone it for others.
    async fn query(
        &self,
        operation: &'static str,
        statement: &str,
        is_urgent: bool,
    ) -> Result<Vec<Row>, Failure> {
        let mut left = REPEATED;
        loop {
            let failed = match self.query_once(operation, statement, is_urgent).await? {
                Ok(rows) => return Ok(rows),
                Err(failed) => failed,
            };
            if left == 0 {
                return Err(failed);
            }
            left -= 1;
            let pause = crate::env::rng().random_range(Duration::ZERO..APART);
            tokio::time::sleep(pause).await;
        }
    }

    /// The inner error: it may be made again.
    async fn query_once(
        &self,
        operation: &'static str,
        statement: &str,
        is_urgent: bool,
    ) -> Result<Result<Vec<Row>, Failure>, Failure> {
        let mut lane = self.lane(is_urgent).await;
        // Taken out: whoever comes after one that is given up finds none.
        let Some(mut conn) = lane.take() else {
            let message = "the connection was given up";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, operation, message)));
        };
        let sent = Sent::on(&self.connections, self.epoch);
        let rows = conn.query(statement).await;
        let answered = match rows {
            Ok(rows) => Ok(rows),
            Err(error) => {
                let mut failure = failure(operation, &error);
                failure.is_broken = failure.is_broken || !roll_back(&mut conn).await;
                Err((failure, is_undone(&error)))
            }
        };
        sent.answered();
        if !answered.as_ref().is_err_and(|(failure, _)| failure.is_broken) {
            *lane = Some(conn);
        }
        match answered {
            Ok(rows) => Ok(Ok(rows)),
            Err((failure, is_undone)) if is_undone && !failure.is_broken => Ok(Err(failure)),
            Err((failure, _)) => Err(failure),
        }
    }

    async fn lane(&self, is_urgent: bool) -> MutexGuard<'_, Option<Conn>> {
        let [calls @ .., urgent] = &self.lanes;
        if is_urgent {
            return urgent.lock().await;
        }
        if let Some(free) = calls.iter().find_map(|lane| lane.try_lock().ok()) {
            return free;
        }
        calls[self.next.fetch_add(1, Ordering::Relaxed) % CALLS].lock().await
    }
}

/// A procedure that is killed, or out of memory, has none of its handlers run: what it had begun goes on, with all that it has
/// locked, and the next step would commit it. Whether it is undone.
async fn roll_back(conn: &mut Conn) -> bool {
    conn.query_drop("ROLLBACK").await.is_ok()
}

/// What a query that changes nothing is answered, which waits for no call.
pub(super) async fn ask(
    connections: &Arc<Connections<Mysql>>,
    statement: &str,
) -> Result<Vec<Row>> {
    let make = |connection: Arc<Connection>| async move {
        connection.query("watch", statement, true).await
    };
    connections.urgent_call("watch", make).await
}
