//! The connections to the server, and how a call is made on one of them.
//!
//! The server answers one statement at a time on a connection. So a client has three connections to one server, which are called
//! *lanes* here: two for calls, and one for urgent requests, that is for heartbeats and for the poll (the query that asks for all
//! waiters of this client). So urgent requests do not wait for other calls. The three lanes are made and given up together, and
//! have one number in common, their epoch.
//!
//! If a caller gives up a statement before its answer has come, nothing more is sent on that lane (C3), and all three lanes are
//! given up. The server may carry out the statement later. But if a call of the same session has come with a higher epoch by then,
//! the server rejects the statement.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use rand::RngExt;
use tokio::sync::{Mutex, MutexGuard};

use super::config::Database;
use super::database::{Server, join};
use super::error::{failure, is_denied, is_undone};
use super::link::SILENCE;
use super::polls::Polls;
use super::statement::text_of;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::in_time;
use crate::backend::server::sql::{Call, Connections, Sending, Sent};
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// How many lanes (connections) there are for calls. There is one more lane, for heartbeats and the poll.
pub(super) const CALLS: usize = 2;
/// How often a call is repeated if the server rolls it back because of a deadlock or because it waited for a lock too long.
/// Deadlocks can reach this number soon, because the server reports them at once. A wait for a lock takes a second. If each try
/// waits for a lock, and the time limit of calls is less than half a minute, the caller gives up before this number is reached.
const REPEATED: usize = 30;
/// The longest pause before a call is repeated. Its length is random, so that two calls that were in each other's way are not
/// repeated at the same moment.
const APART: Duration = Duration::from_millis(10);
/// The server ends a connection on which nothing was sent for this time, or for [`LEASES`] if they are longer. So it does not keep
/// the connections of clients that have lost their power for hours. A client that runs sends something far sooner, see
/// [`use_silent_lanes`].
const KEPT: Duration = Duration::from_secs(600);
/// How many leases the server keeps a connection at least. Heartbeats come at least three times in a lease.
const LEASES: u32 = 4;

/// The settings and the state that all connections of this client share.
pub(super) struct Mysql {
    pub(super) database: Database,
    pub(super) polls: Arc<Polls>,
    /// For how long the server keeps a connection on which nothing is sent.
    kept: Duration,
}

/// The lanes of one epoch: three connections to the same server, which can be written to.
pub(super) struct Connection {
    /// The lanes: two for calls, and after them the one for heartbeats and the poll. A lane is `None` while a statement is in
    /// flight on it, and stays `None` if its connection broke or the statement was given up.
    lanes: [Mutex<Option<Lane>>; CALLS + 1],
    /// The number of calls so far that found both lanes busy. By it, such calls are assigned to the two lanes in turn.
    next: AtomicUsize,
    pub(super) server: Server,
    connections: Weak<Connections<Mysql>>,
    epoch: u64,
}

/// One of the three connections.
struct Lane {
    conn: Conn,
    /// When the newest answer came on it.
    used: Instant,
}

impl Mysql {
    /// Makes the state of a client. `lease` is the lease of the client's sessions. At least once in that time, the poll reads each
    /// entry that somebody waits for.
    pub(super) fn new(database: Database, lease: Duration) -> Self {
        Self { database, polls: Arc::new(Polls::new(lease)), kept: KEPT.max(LEASES * lease) }
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
        let Mysql { database, kept, .. } = &connections.link.dialect;
        let mut first = super::link::open(user, place, credentials).await?;
        let (server, identity) = Server::greet(&mut first, database, *kept).await?;
        if !connections.has_connected() {
            Server::check_rights(&mut first).await?;
        }
        let another = async || {
            let mut conn = super::link::open(user, place, credentials).await?;
            join(&mut conn, database, &identity, *kept).await?;
            Ok::<_, Failure>(conn)
        };
        let (second, third) = tokio::try_join!(another(), another())?;
        let lane = |conn| Mutex::new(Some(Lane { conn, used: Instant::now() }));
        Ok(Self {
            lanes: [first, second, third].map(lane),
            next: AtomicUsize::new(0),
            server,
            connections: Arc::downgrade(connections),
            epoch,
        })
    }

    /// Sends a call as one SQL statement, and returns the rows of the answer.
    pub(super) async fn call(&self, call: &Call, is_urgent: bool) -> Result<Vec<Row>, Failure> {
        self.query(call.operation, &text_of(call, self.epoch), is_urgent).await
    }

    /// Sends a statement and returns the rows of the answer. If the server rolls the statement back because of a deadlock or
    /// because it waited for a lock too long, sends it again after a short pause.
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

    /// Sends a statement once. The result has two errors: the inner error means that the server rolled the statement back because
    /// of a deadlock or a lock, so that it may be sent again. The outer error means any other failure.
    async fn query_once(
        &self,
        operation: &'static str,
        statement: &str,
        is_urgent: bool,
    ) -> Result<Result<Vec<Row>, Failure>, Failure> {
        let mut lane = self.lane(is_urgent).await;
        self.query_on(&mut lane, operation, statement).await
    }

    /// [`query_once`](Self::query_once) on this lane.
    async fn query_on(
        &self,
        lane: &mut Option<Lane>,
        operation: &'static str,
        statement: &str,
    ) -> Result<Result<Vec<Row>, Failure>, Failure> {
        // The connection is taken out of the lane while the statement is in flight, and put back after the answer. If the caller
        // gives up before that, this future is dropped and the lane stays `None`, so that the next caller sends nothing on it.
        let Some(Lane { mut conn, .. }) = lane.take() else {
            let message = "the connection was given up";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, operation, message)));
        };
        let sent = Sent::on(&self.connections, self.epoch);
        let mut rows = conn.query::<Row, _>(statement).await;
        // The procedure was rolled back, so it may be sent again.
        if rows.as_ref().is_err_and(is_denied) && self.read_rights(&mut conn).await {
            rows = conn.query(statement).await;
        }
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
            *lane = Some(Lane { conn, used: Instant::now() });
        }
        match answered {
            Ok(rows) => Ok(Ok(rows)),
            Err((failure, is_undone)) if is_undone && !failure.is_broken => Ok(Err(failure)),
            Err((failure, _)) => Err(failure),
        }
    }

    /// Has the server read the user's rights on the database anew. On a connection it goes by those that he had when the database was
    /// chosen there. So a right that was taken away for a while, and given back, would be missing on this connection for as long as it
    /// lasts (`F-56`). Returns whether that succeeded.
    async fn read_rights(&self, conn: &mut Conn) -> bool {
        let Some(connections) = self.connections.upgrade() else { return false };
        let choosing = format!("ROLLBACK; USE {}", connections.link.dialect.database);
        drop(connections);
        conn.query_drop(choosing).await.is_ok()
    }

    /// Sends a statement that changes nothing on each lane for calls on which nothing was sent for [`SILENCE`].
    async fn use_silent_lanes(&self) -> Result<(), Failure> {
        for lane in &self.lanes[..CALLS] {
            // A lane that is locked is in use.
            let Ok(mut lane) = lane.try_lock() else { continue };
            if lane.as_ref().is_some_and(|lane| lane.used.elapsed() >= SILENCE) {
                self.query_on(&mut lane, "renew", "DO 0").await??;
            }
        }
        Ok(())
    }

    /// Sends a statement that changes nothing on the lane for heartbeats and the poll. It begins only when it has the lane: so one at
    /// a time is left to finish there if its caller gives up.
    async fn probe(&self, sending: &Sending) -> Result<(), Failure> {
        let mut lane = self.lane(true).await;
        sending.begins();
        self.query_on(&mut lane, "watch", "DO 0").await?.map(drop)
    }

    async fn lane(&self, is_urgent: bool) -> MutexGuard<'_, Option<Lane>> {
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

/// Sends `ROLLBACK` after an error; returns whether that succeeded. Usually the procedure has rolled back itself, in its error
/// handler. But if the procedure is killed or runs out of memory, the handler does not run. Without this `ROLLBACK`, its
/// transaction would then stay open, and keep its locks, until the next procedure on this connection.
async fn roll_back(conn: &mut Conn) -> bool {
    conn.query_drop("ROLLBACK").await.is_ok()
}

/// Sends a query that changes nothing, on the lane for heartbeats and the poll, and returns its rows.
pub(super) async fn ask(
    connections: &Arc<Connections<Mysql>>,
    statement: &str,
) -> Result<Vec<Row>> {
    let make = |connection: Arc<Connection>| async move {
        connection.query("watch", statement, true).await
    };
    connections.urgent_call("watch", make).await
}

/// Finds out whether the server answers, on that lane.
pub(super) async fn probe(connections: &Arc<Connections<Mysql>>, sending: &Sending) -> Result<()> {
    let probing = |connection: Arc<Connection>| async move { connection.probe(sending).await };
    connections.urgent_call("watch", probing).await
}

/// Uses the connections for calls, if they have been idle for long. Called with each heartbeat, in a task of its own.
///
/// A process that only holds locks makes no calls. So what is between it and the server might drop these connections without a
/// word, and the next release would have to wait until nobody has answered it in time. This call is in nobody's way meanwhile.
pub(super) async fn use_silent_lanes(connections: &Arc<Connections<Mysql>>) {
    if connections.rotation.connected().is_none() {
        return;
    }
    let using = async |connection: Arc<Connection>| connection.use_silent_lanes().await;
    let using = connections.urgent_call("renew", using);
    // The result is ignored: if this fails, the connections are given up, and the next call is sent on new ones. It is given up
    // so early that the same server is used again (see `Sent`): heartbeats tell whether the server answers, and something on the
    // way may have dropped the connections for calls alone.
    let _: Result<()> = in_time(connections.patience / 2, using).await;
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::backend::server::sql::let_finish;

    /// Whoever asks whether the server answers, and gives up, leaves nothing behind that waits for the lane of heartbeats.
    #[tokio::test(start_paused = true)]
    async fn a_probe_begins_only_when_it_has_the_lane() {
        const PATIENCE: Duration = Duration::from_secs(1);
        let connection = Arc::new(Connection {
            lanes: std::array::from_fn(|_| Mutex::default()),
            next: AtomicUsize::default(),
            server: Server::default(),
            connections: Weak::new(),
            epoch: 1,
        });
        let busy = connection.lane(true).await;
        let same = Arc::clone(&connection);
        let probing = |sending: Sending| async move {
            same.probe(&sending).await.map_err(|failure| failure.error)
        };
        let given_up = timeout(PATIENCE / 2, let_finish("watch", PATIENCE, probing)).await;
        assert!(given_up.is_err(), "the lane is in use");
        // Far less than it would have for an answer.
        sleep(PATIENCE / 100).await;
        assert_eq!(Arc::strong_count(&connection), 1, "it goes on");
        drop(busy);
    }
}
