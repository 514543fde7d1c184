//! Connections: where they go, and which one a call is made on.
//!
//! The server answers one statement at a time on a connection. So what all callers share is three of them, lanes, to one
//! server, which are made and given up together, under one number, their epoch: two for calls, and one for what waits for no
//! call, which are heartbeats and the poll for all waiters. A statement that is given up without its answer is the last one on
//! its lane (C3), and in its epoch: the server refuses what comes on a connection older than the newest one it has heard of, so
//! that it can do no harm, however late it is carried out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use rand::RngExt;
use tokio::sync::{Mutex, MutexGuard};

use super::config::Config;
use super::database::{Server, join};
use super::error::{failure, is_undone};
use super::statement::{Answer, Call};
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::rotation::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// The places, and the connection in use.
pub(super) type Connections = connections::Connections<Client>;

/// How many lanes there are for calls; one more is for what waits for none.
const CALLS: usize = 2;
/// How often a step is made again that the server has undone for others. One that has waited for a lock for a second was
/// not in a deadlock; its caller gives up before that many seconds are over.
const REPEATED: usize = 30;
/// Before it is made again, at the most.
const APART: Duration = Duration::from_millis(10);

/// What a connection is made with.
pub(super) struct Client {
    pub(super) config: Config,
}

/// Connections to a server that can be written to.
pub(super) struct Connection {
    /// One whose statement was given up, or broke, has no connection any more.
    lanes: [Mutex<Option<Conn>>; CALLS + 1],
    /// Counts those that found no lane free.
    next: AtomicUsize,
    pub(super) server: Server,
    connections: Weak<Connections>,
    epoch: u64,
}

/// A statement that was sent, and not answered yet.
struct Sent<'a> {
    connection: &'a Connection,
    at: Instant,
    is_answered: bool,
}

impl Client {
    pub(super) fn new(mut config: Config) -> Self {
        // A thousand clients must not all come to the same one (`R4`).
        rand::seq::SliceRandom::shuffle(config.hosts.as_mut_slice(), &mut crate::env::rng());
        Self { config }
    }
}

impl Link for Client {
    type Connection = Arc<Connection>;
    type Failed = Failure;

    /// Whoever waits for a lane has sent nothing: so he waits here, and not with his time for the answer.
    const IN_FLIGHT: usize = CALLS;
    const SECURE: &'static str = "ssl-mode=verify_identity";
    const WANTS_TLS: &'static str = "the server wants TLS: give `ssl-mode=verify_identity`";

    fn hosts(&self) -> usize {
        self.config.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.config.hosts.get(nth)
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.config.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    fn access(&self) -> &Access {
        &self.config.access
    }

    /// It is several round trips, and a password costs both sides time; a call is one round trip.
    fn longest(&self, patience: Duration) -> Duration {
        5 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Arc<Connection>, Failure> {
        let made = Connection::make(connections, turn, credentials).await;
        // Whatever it was, the next place may do better.
        made.map(Arc::new).map_err(|failure| Failure { is_broken: true, ..failure })
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl Connection {
    async fn make(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Self, Failure> {
        let Client { config } = &connections.link;
        let nowhere =
            || Failure::broken(Error::new(ErrorKind::Unavailable, "connect", "there is no server"));
        let host = config.hosts.get(turn.place.host).ok_or_else(nowhere)?;
        let address = turn.place.address.ok_or_else(nowhere)?;
        let mut first = config.open((host, address), credentials).await?;
        let (server, identity) = Server::greet(&mut first, &config.database).await?;
        if !connections.has_connected() {
            Server::check_rights(&mut first).await?;
        }
        let another = async || {
            let mut conn = config.open((host, address), credentials).await?;
            join(&mut conn, &config.database, &identity).await?;
            Ok::<_, Failure>(Mutex::new(Some(conn)))
        };
        let (second, third) = tokio::try_join!(another(), another())?;
        Ok(Self {
            lanes: [Mutex::new(Some(first)), second, third],
            next: AtomicUsize::new(0),
            server,
            connections: Arc::downgrade(connections),
            epoch: turn.epoch,
        })
    }

    /// Makes a call.
    async fn call(&self, call: &Call, is_urgent: bool) -> Result<Answer, Failure> {
        let statement = call.statement(self.epoch);
        let rows = self.query(call.operation, &statement, is_urgent).await?;
        Answer::checked(call.operation, rows).map_err(Failure::harmless)
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
        let sent = Sent { connection: self, at: Instant::now(), is_answered: false };
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

impl Sent<'_> {
    /// Be it by an error.
    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Sent<'_> {
    /// Given up: nothing else is sent in this epoch (C3).
    fn drop(&mut self) {
        let Connection { connections, epoch, .. } = self.connection;
        let Some(connections) = connections.upgrade().filter(|_| !self.is_answered) else { return };
        // A little less: who gives up a call after that time has begun to count a moment earlier.
        match self.at.elapsed() >= connections.patience * 9 / 10 {
            true => connections.rotation.give_up(*epoch),
            false => connections.rotation.leave(*epoch),
        }
    }
}

impl Connections {
    /// The first call of all: who is there?
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let greeting = self.greet(|connection| async move { Ok(connection) }).await;
        greeting.map_err(|error| error.at(&self.shown()))
    }

    /// Makes a call on the connection in use.
    pub(super) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let make = |connection: Arc<Connection>| async move { connection.call(call, false).await };
        self.call(call.operation, make).await
    }

    /// [`run`](Self::run) that waits for no other, for heartbeats.
    pub(super) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer> {
        let make = |connection: Arc<Connection>| async move { connection.call(call, true).await };
        self.urgent_call(call.operation, make).await
    }

    /// What a query that changes nothing is answered, which waits for no call.
    pub(super) async fn ask(self: &Arc<Self>, statement: &str) -> Result<Answer> {
        let make = |connection: Arc<Connection>| async move {
            let rows = connection.query("watch", statement, true).await?;
            Ok(Answer::of_query("watch", rows))
        };
        self.urgent_call("watch", make).await
    }
}
