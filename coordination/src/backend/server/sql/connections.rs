//! The places, the connection in use, and how a call is made on it. A statement that is given up without its answer is the last
//! one on its connection (C3), and the server refuses what comes on an older connection than the newest one it has heard of, so that
//! it can do no harm, however late it is carried out.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Answer, Call, Client, Connections, Dialect, Servers};
use crate::backend::server::connections::{Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::rotation::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// A statement that was sent, and not answered yet.
pub(crate) struct Sent<'a, D: Dialect> {
    connections: &'a Weak<Connections<D>>,
    epoch: u64,
    at: Instant,
    is_answered: bool,
}

impl<D> Client<D> {
    pub(super) fn new(mut servers: Servers, dialect: D) -> Self {
        // A thousand clients must not all come to the same one (`R4`).
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

    /// It is several round trips, and a password costs both sides time; a call is one round trip.
    fn longest(&self, patience: Duration) -> Duration {
        5 * patience
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
        // Whatever it was, the next place may do better.
        made.map(Arc::new).map_err(|failure| Failure { is_broken: true, ..failure })
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl<'a, D: Dialect> Sent<'a, D> {
    /// One is sent on the connection of this number.
    pub(crate) fn on(connections: &'a Weak<Connections<D>>, epoch: u64) -> Self {
        Self { connections, epoch, at: Instant::now(), is_answered: false }
    }

    /// Be it by an error.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl<D: Dialect> Drop for Sent<'_, D> {
    /// Given up: nothing else is sent on the connection (C3).
    fn drop(&mut self) {
        let Some(connections) = self.connections.upgrade().filter(|_| !self.is_answered) else {
            return;
        };
        // A little less: who gives up a call after that time has begun to count a moment earlier.
        match self.at.elapsed() >= connections.patience * 9 / 10 {
            true => connections.rotation.give_up(self.epoch),
            false => connections.rotation.leave(self.epoch),
        }
    }
}

impl<D: Dialect> Connections<D> {
    /// The first call of all: who is there?
    pub(super) async fn first(self: &Arc<Self>) -> Result<Arc<D::Connection>> {
        let greeting = self.greet(|connection| async move { Ok(connection) }).await;
        greeting.map_err(|error| error.at(&self.shown()))
    }

    /// Makes a call on the connection in use.
    pub(crate) async fn run(self: &Arc<Self>, call: &Call) -> Result<Answer<D::Row>> {
        self.call(call.operation, |connection| self.carry_out(connection, call, false)).await
    }

    /// [`run`](Self::run) that waits for no other, for heartbeats.
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
