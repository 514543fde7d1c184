//! How a call is made on the connection in use.
//!
//! A caller may give up a call before the answer has come, and the server may carry out the call later. So the connection is given
//! up with the call: nothing more is sent on it (C3), and the next call is sent on a new connection, which has a higher epoch. As
//! soon as the server has carried out a call of the session that came on the new connection, it rejects all calls of the session
//! that come on older connections (`stale`).
//!
//! A call that does no harm however late it is carried out is not given up with its caller: see [`finishing`](super::finishing).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Answer, Call, Client, Connections, Dialect, Sending, Servers, let_finish};
use crate::backend::server::connections::{Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::rotation::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// A statement that was sent and is not answered yet. If this is dropped before the answer has come, the connection is given up.
pub(crate) struct Sent<'a, D: Dialect> {
    connections: &'a Weak<Connections<D>>,
    epoch: u64,
    at: Instant,
    is_answered: bool,
}

impl<D> Client<D> {
    pub(super) fn new(mut servers: Servers, dialect: D) -> Self {
        // The hosts are shuffled, so that many clients with the same URL do not all connect to the same server first (`R4`).
        rand::seq::SliceRandom::shuffle(servers.hosts.as_mut_slice(), &mut crate::env::rng());
        Self { servers, dialect }
    }
}

impl<D: Dialect> Link for Client<D> {
    type Connection = Arc<D::Connection>;
    type Failed = Failure;

    const IN_FLIGHT: usize = D::IN_FLIGHT;
    const SECURE: &'static str = D::SECURE;
    const WANTS_TLS: &'static str = D::WANTS_TLS;

    fn hosts(&self) -> usize {
        self.servers.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.servers.hosts.get(nth)
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.servers.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    fn access(&self) -> &Access {
        &self.servers.access
    }

    /// Connecting may take longer than a call: it takes several round trips, and checking the password takes time on both sides. A
    /// call takes one round trip. But while a session waits for another server, a host that does not answer at all must not take
    /// most of the lease.
    fn longest(&self, patience: Duration, is_urgent: bool) -> Duration {
        match is_urgent {
            true => 2 * patience,
            false => 5 * patience,
        }
    }

    async fn connect(
        connections: &Arc<Connections<D>>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Arc<D::Connection>, Failure> {
        let nowhere =
            || Failure::broken(Error::new(ErrorKind::Unavailable, "connect", "there is no server"));
        let host = connections.link.host(turn.place.host).ok_or_else(nowhere)?;
        let place = (host, turn.place.address.ok_or_else(nowhere)?);
        let made = D::connect(connections, place, turn.epoch, credentials).await;
        // Whatever the reason of the failure was, the connection counts as broken, so that the next server is tried.
        made.map(Arc::new).map_err(|failure| Failure { is_broken: true, ..failure })
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl<'a, D: Dialect> Sent<'a, D> {
    /// Called when a statement is sent on the connection of this epoch. Counts the time until the answer.
    pub(crate) fn on(connections: &'a Weak<Connections<D>>, epoch: u64) -> Self {
        Self { connections, epoch, at: Instant::now(), is_answered: false }
    }

    /// Called when the answer has come, even if the answer is an error: the connection is kept.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl<D: Dialect> Drop for Sent<'_, D> {
    /// If no answer has come, gives up the connection, so that nothing more is sent on it (C3).
    fn drop(&mut self) {
        let Some(connections) = self.connections.upgrade().filter(|_| !self.is_answered) else {
            return;
        };
        // If no answer came within `patience`, the server may be down, so the next server is tried. If the caller gave up before
        // `patience` was over, the same server is used again, unless it cannot be connected to soon. The limit is a little less than
        // `patience`, because the caller gives up after `patience`, counted from a moment before the statement was sent.
        match self.at.elapsed() >= connections.patience * 9 / 10 {
            true => connections.rotation.give_up(self.epoch),
            false => connections.rotation.leave_unanswered(self.epoch),
        }
    }
}

impl<D: Dialect> Connections<D> {
    /// Makes the first connection. An error names the servers.
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<D::Connection>> {
        let greeting = self.greet(|connection| async move { Ok(connection) }).await;
        greeting.map_err(|error| error.at(&self.shown()))
    }

    /// Makes a call on the connection in use. If the caller gives up once the call is sent, the connection is given up, too.
    pub(crate) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer<D::Row>> {
        self.call(call.operation, |connection| self.carry_out(connection, call, false)).await
    }

    /// [`run`](Self::run) for a call that does no harm however late it is carried out, such as a read. If the caller gives up once
    /// the call is sent, its answer is awaited for a moment longer, and the connection is kept if that comes.
    pub(crate) async fn run_to_end(self: &Arc<Self>, call: Call) -> Result<Answer<D::Row>> {
        let (connections, operation) = (Arc::clone(self), call.operation);
        let running = |sending: Sending| async move {
            let ready = connections.ready(operation).await?;
            sending.begins();
            ready.make(|connection| connections.carry_out(connection, &call, false)).await
        };
        let_finish(operation, self.patience, running).await
    }

    /// [`run`](Self::run) for heartbeats, which do not wait for a slot among the calls in flight.
    pub(crate) async fn run_urgently(self: &Arc<Self>, call: &Call) -> Result<Answer<D::Row>> {
        self.urgent_call(call.operation, |connection| self.carry_out(connection, call, true)).await
    }

    async fn carry_out(
        &self,
        connection: Arc<D::Connection>,
        call: &Call,
        is_urgent: bool,
    ) -> Result<Answer<D::Row>, Failure> {
        let rows = self.link.dialect.carry_out(&connection, call, is_urgent).await?;
        Answer::checked(call.operation, rows).map_err(Failure::harmless)
    }
}
