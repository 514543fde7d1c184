//! Connections, and how a call is made on one.
//!
//! The server answers one statement at a time on a connection. So a client has three connections to one server, called lanes here:
//! two for calls, and one for heartbeats and the poll for all waiters, so that these do not wait for other calls. The three are
//! made and given up together, and have one number, their epoch. When a caller gives up a statement before its answer, nothing more
//! is sent on its lane (C3), and the whole epoch is given up. The server may come to the statement late. It then rejects the
//! statement if a call of the session has come with a higher epoch before.

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

/// How many lanes there are for calls. There is one more, for heartbeats and the poll.
pub(super) const CALLS: usize = 2;
/// How often a call is sent again after the server rolled it back because of a deadlock or a lock wait. A deadlock is reported at
/// once. A lock wait takes a second, so the caller gives up before the call was sent so often.
const REPEATED: usize = 30;
/// The longest pause before a call is sent again.
const APART: Duration = Duration::from_millis(10);

/// What is the same for all connections of this client.
pub(super) struct Mysql {
    pub(super) database: Database,
    pub(super) polls: Arc<Polls>,
}

/// Connections to a server that can be written to.
pub(super) struct Connection {
    /// The lanes: two for calls, then the one for heartbeats. `None`: the connection broke, or a statement on it was given up.
    lanes: [Mutex<Option<Conn>>; CALLS + 1],
    /// Counts calls that found no lane free; they take turns in waiting for one of the two.
    next: AtomicUsize,
    pub(super) server: Server,
    connections: Weak<Connections<Mysql>>,
    epoch: u64,
}

impl Mysql {
    /// Makes the state of a client. `lease`: the lease of its sessions.
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

    /// Sends a call as one statement and returns the rows of its answer.
    pub(super) async fn call(&self, call: &Call, is_urgent: bool) -> Result<Vec<Row>, Failure> {
        self.query(call.operation, &text_of(call, self.epoch), is_urgent).await
    }

    /// Sends a statement, and sends it again if the server rolled it back because of a deadlock or a lock wait.
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

    /// The inner error: the server rolled the statement back, and it may be sent again. The outer error: it may not.
    async fn query_once(
        &self,
        operation: &'static str,
        statement: &str,
        is_urgent: bool,
    ) -> Result<Result<Vec<Row>, Failure>, Failure> {
        let mut lane = self.lane(is_urgent).await;
        // The connection is taken out of the lane while the statement is under way. If the caller gives up, the next caller finds
        // no connection, and sends nothing.
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

/// Rolls back after an error; true: the rollback has succeeded. If a procedure is killed or runs out of memory, its own handler,
/// which rolls back, does not run. Its transaction would stay open, with all that it has locked, until the next procedure on this
/// connection begins with a `ROLLBACK`.
async fn roll_back(conn: &mut Conn) -> bool {
    conn.query_drop("ROLLBACK").await.is_ok()
}

/// Sends a query that changes nothing, on the lane for heartbeats, and returns its rows.
pub(super) async fn ask(
    connections: &Arc<Connections<Mysql>>,
    statement: &str,
) -> Result<Vec<Row>> {
    let make = |connection: Arc<Connection>| async move {
        connection.query("watch", statement, true).await
    };
    connections.urgent_call("watch", make).await
}
