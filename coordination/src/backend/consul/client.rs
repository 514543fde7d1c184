//! Requests, each to the agent in use.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time, and heartbeats have a connection that no other call gets: see [`crowding`](super::crowding).
//! A connection that went silent would be used again from the pool, so what counts as a connection in
//! [`connections`](crate::backend::server::connections) is the whole pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use tokio::time::timeout;

use super::config::Config;
use super::crowding::{Crowding, FULL};
use super::pool::{Lane, Pool, no_agent_now};
use super::request::{Answer, Request};
use crate::backend::server::connections::{self, Failure, Link, Ready};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::in_time;
use crate::backend::server::rotation::Turn;
use crate::config::Settings;
use crate::env;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::url::Host;

/// The agents, and the connections in use.
pub(super) type Connections = connections::Connections<Agents>;

/// How to connect to an agent.
pub(super) struct Agents {
    hosts: Vec<Host>,
    access: Arc<Access>,
    datacenter: Option<String>,
    pub(super) crowding: Arc<Crowding>,
}

impl Agents {
    pub(super) fn new(config: &Config, settings: &Settings) -> Self {
        let mut hosts = config.hosts.clone();
        // A thousand clients must not all come to the same agent (`R4`).
        hosts.shuffle(&mut env::rng());
        let access = Arc::clone(&config.access);
        let datacenter = config.datacenter.clone();
        Self { hosts, access, datacenter, crowding: Arc::new(Crowding::new(settings)) }
    }

    fn pool(&self, turn: Turn, credentials: &Credentials) -> Result<Pool> {
        let host = self.hosts.get(turn.place.host).ok_or_else(|| Error::config("no host"))?;
        let who = (&self.access, credentials);
        Pool::new((host, turn.place), self.datacenter.clone(), who, &self.crowding)
    }
}

impl Link for Agents {
    type Connection = Pool;
    type Failed = Failure;

    /// Consul allows 200 connections from one address. Heartbeats and what waits are not among these.
    const IN_FLIGHT: usize = 4;
    const SECURE: &'static str = "consul+https://";
    const WANTS_TLS: &'static str = "the server wants TLS: use consul+https://";

    fn hosts(&self) -> usize {
        self.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.hosts.get(nth)
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    fn access(&self) -> &Access {
        &self.access
    }

    fn longest(&self, patience: Duration) -> Duration {
        2 * patience
    }

    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Pool, Failure> {
        let (crowding, sent) = (&connections.link.crowding, Instant::now());
        let pool = connections.link.pool(turn, credentials).map_err(Failure::harmless)?;
        if connections.has_connected() {
            // All others have lost theirs as well: the first ones that are made are for heartbeats.
            crowding.give_way();
        }
        match pool.leader().await {
            // It would keep calls, and their connections, until there is one.
            Ok(leader) if leader.is_empty() => {
                let message = "the cluster has no leader";
                Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
            }
            Ok(_) => {
                if *credentials != *connections.link.access.used() {
                    // It is told in time that nobody has this token.
                    pool.knows_us().await?;
                }
                crowding.answered(sent);
                Ok(pool)
            }
            // It was one, and may be one again.
            Err(failure) if connections.has_connected() && !failure.error.is_transient() => {
                Err(no_agent_now("connect", Effect::None, &failure))
            }
            Err(failure) => Err(failure),
        }
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl Connections {
    /// Makes a call. It is made once only: one that failed may have been carried out.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.ready_in_turn(operation).await?.send(request).await
    }

    /// [`ready`](Self::ready), after the pause that follows where a connection was refused.
    pub(super) async fn ready_in_turn(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<Ready<'_, Agents>> {
        let turn = timeout(self.patience / 2, self.link.crowding.turn()).await;
        turn.map_err(|_| Error::new(ErrorKind::Unavailable, operation, FULL))?;
        self.ready(operation).await
    }

    /// [`send`](Self::send) that waits for no other, on the connection that is kept for heartbeats.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.urgent(operation).await?.send_urgently(request).await
    }

    /// A query that the server answers when something changes, or after this time.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: Request,
        longest: Duration,
    ) -> Result<Answer> {
        let request = request.with(&format!("wait={}ms", longest.as_millis()));
        let (pool, epoch) = self.reach_for("watch").await?;
        if self.link.crowding.gives_way() {
            return Err(Error::new(ErrorKind::Unavailable, "watch", FULL));
        }
        // The server adds up to a sixteenth, so that not all come at once.
        let limit = longest + longest / 16 + self.patience;
        // Its silence says nothing.
        let attempt = self.rotation.attempt(epoch).unhurried();
        let asking = self.judged("watch", attempt, pool.ask(Lane::Others, "watch", request));
        let answer =
            in_time(limit, async { asking.await.map_err(|failure| failure.error) }).await?;
        self.link.crowding.queried();
        Ok(answer)
    }
}

impl Ready<'_, Agents> {
    pub(super) async fn send(self, request: Request) -> Result<Answer> {
        self.send_on(Lane::Others, request).await
    }

    /// [`send`](Self::send) on the connection that is kept for heartbeats.
    pub(super) async fn send_urgently(self, request: Request) -> Result<Answer> {
        self.send_on(Lane::Heartbeats, request).await
    }

    async fn send_on(self, lane: Lane, request: Request) -> Result<Answer> {
        // Most callers have shorter limits of their own; not those in the background.
        let (operation, limit) = (self.operation, 2 * self.connections.patience);
        let ask = async |pool: Pool| {
            let asking = timeout(limit, pool.ask(lane, operation, request)).await;
            asking.unwrap_or_else(|_| Err(Failure::late(operation, limit, Effect::Unknown)))
        };
        self.make(ask).await
    }
}
