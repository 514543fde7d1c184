//! Requests, each to the agent in use.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time, and one connection is kept, for heartbeats and for whoever gets no other: see
//! [`crowding`](super::crowding).
//! A connection that went silent would be used again from the pool, so what counts as a connection in
//! [`connections`](crate::backend::server::connections) is the whole pool.

use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::time::timeout;

use super::config::Config;
use super::crowding::Crowding;
use super::pool::{Lane, Pool, no_agent_now};
use super::request::{Answer, Request};
use crate::backend::server::connections::{self, Failure, Link, Ready};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::rotation::Turn;
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
    pub(super) fn new(config: &Config) -> Self {
        let mut hosts = config.hosts.clone();
        // A thousand clients must not all come to the same agent (`R4`).
        hosts.shuffle(&mut env::rng());
        let access = Arc::clone(&config.access);
        Self { hosts, access, datacenter: config.datacenter.clone(), crowding: Arc::default() }
    }

    fn pool(&self, turn: Turn, credentials: &Credentials, limit: Duration) -> Result<Pool> {
        let host = self.hosts.get(turn.place.host).ok_or_else(|| Error::config("no host"))?;
        let who = (&self.access, credentials);
        let how = (self.datacenter.clone(), limit);
        Pool::new((host, turn.place), how, who, &self.crowding)
    }
}

impl Link for Agents {
    type Connection = Pool;
    type Failed = Failure;

    /// Few, as Consul allows 200 connections from one address. Heartbeats and blocking queries do not count here.
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
        let limit = connections.call_limit();
        let pool = connections.link.pool(turn, credentials, limit).map_err(Failure::harmless)?;
        match pool.leader().await {
            // An agent without a leader would keep each call, and its connection, until there is one.
            Ok(leader) if leader.is_empty() => {
                let message = "the cluster has no leader";
                Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
            }
            Ok(_) => {
                if *credentials != *connections.link.access.used() {
                    // No server has let us in with these credentials yet: a token that Consul does not know is found here,
                    // before any other call.
                    pool.knows_us().await?;
                }
                if connections.has_connected() {
                    // The agent was lost, and all its clients connect again: heartbeats come first.
                    connections.link.crowding.begun_anew();
                }
                Ok(pool)
            }
            // The host was an agent, and may be one again: the error has to be one that is retried.
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
    /// How long a call may take. Most callers have shorter limits of their own; not those in the background.
    fn call_limit(&self) -> Duration {
        2 * self.patience
    }

    /// Makes a call. It is made once only: one that failed may have been carried out.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.ready(operation).await?.send(request).await
    }

    /// [`send`](Self::send) on the connection that is kept, without waiting until few enough calls are in flight.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.urgent(operation).await?.send_urgently(request).await
    }

    /// A query that the server answers when something has changed since this index, or after this time. While this process
    /// gives way, the query does not block: it is sent after a pause, and answered at once.
    pub(super) async fn wait(
        self: &Arc<Self>,
        query: impl Fn() -> Request,
        index: u64,
        longest: Duration,
    ) -> Result<Answer> {
        let crowding = &self.link.crowding;
        if !crowding.gives_way() {
            match self.wait_there(query(), index, longest).await {
                Err(failure) if failure.is_full && !failure.is_broken => {}
                answer => return answer.map_err(|failure| failure.error),
            }
        }
        crowding.next_look().await;
        self.urgent("watch").await?.send_on(Lane::GivingWay, query()).await
    }

    /// A query that blocks, on a connection for itself.
    async fn wait_there(
        self: &Arc<Self>,
        query: Request,
        index: u64,
        longest: Duration,
    ) -> Result<Answer, Failure> {
        let query = query.waiting(index, longest);
        let (pool, epoch) = self.reach_for("watch").await.map_err(Failure::harmless)?;
        // The server adds up to a sixteenth, so that not all come at once.
        let limit = longest + longest / 16 + self.patience;
        // That it is not answered for long says nothing of the agent.
        let attempt = self.rotation.attempt(epoch).unhurried();
        let asking = self.judged("watch", attempt, pool.ask(Lane::Others, "watch", query));
        let late = || Error::new(ErrorKind::Unavailable, "watch", "no answer in time");
        timeout(limit, asking).await.unwrap_or_else(|_| Err(Failure::harmless(late())))
    }
}

impl Ready<'_, Agents> {
    /// Sends a request on a connection of its own or, while this process gives way, on the one that is kept.
    pub(super) async fn send(self, request: Request) -> Result<Answer> {
        let gives_way = self.connections.link.crowding.gives_way();
        self.send_on(if gives_way { Lane::GivingWay } else { Lane::Others }, request).await
    }

    /// [`send`](Self::send) on the connection that is kept.
    pub(super) async fn send_urgently(self, request: Request) -> Result<Answer> {
        self.send_on(Lane::Kept, request).await
    }

    async fn send_on(self, lane: Lane, request: Request) -> Result<Answer> {
        let (operation, limit) = (self.operation, self.connections.call_limit());
        let ask = async |pool: Pool| {
            let asking = timeout(limit, pool.ask(lane, operation, request)).await;
            asking.unwrap_or_else(|_| Err(pool.late(lane, operation, limit)))
        };
        self.make(ask).await
    }
}
