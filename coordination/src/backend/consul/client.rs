//! Requests, each to the agent in use.
//!
//! With HTTP/1.1, each request in flight needs a connection of its own. Consul allows 200 from one address. So few requests are
//! in flight at a time, and one connection is kept open, for heartbeats, and for all other calls while the agent accepts no
//! other: see [`crowding`](super::crowding). If an agent stopped answering, the HTTP client would go on using the pooled
//! connections to it. So the connection that [`connections`](crate::backend::server::connections) makes and gives up is here a
//! whole pool of them.

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

    /// The number is small, as Consul allows 200 connections from one address. Heartbeats and blocking queries need no slot.
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
                    // No server has accepted these credentials yet: a token that Consul does not know is found here, before any
                    // other call.
                    pool.knows_us().await?;
                }
                if connections.has_connected() {
                    // The agent was lost, and all its clients connect again. The process gives way for a moment, so that
                    // heartbeats come first.
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
    /// How long a call may take. Most callers have shorter limits of their own; calls in the background have none.
    fn call_limit(&self) -> Duration {
        2 * self.patience
    }

    /// Sends a request, once only: a request that failed may have been carried out.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.ready(operation).await?.send(request).await
    }

    /// [`send`](Self::send) on the connection that is kept open for heartbeats, without waiting for a slot.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.urgent(operation).await?.send_urgently(request).await
    }

    /// Sends a blocking query: the server answers it when something has changed since this index, or after this time. While the
    /// process gives way, waits a moment instead, and sends a query that is answered at once.
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
        // The server prolongs the wait by up to a sixteenth, at random, so that not all queries end at the same time.
        let limit = longest + longest / 16 + self.patience;
        // A blocking query may have no answer for long although the agent is there, so the pool is not given up for that.
        let attempt = self.rotation.attempt(epoch).unhurried();
        let asking = self.judged("watch", attempt, pool.ask(Lane::Others, "watch", query));
        let late = || Error::new(ErrorKind::Unavailable, "watch", "no answer in time");
        timeout(limit, asking).await.unwrap_or_else(|_| Err(Failure::harmless(late())))
    }
}

impl Ready<'_, Agents> {
    /// Sends a request on a connection of its own or, while the process gives way, on the connection that is kept open for
    /// heartbeats.
    pub(super) async fn send(self, request: Request) -> Result<Answer> {
        let gives_way = self.connections.link.crowding.gives_way();
        self.send_on(if gives_way { Lane::GivingWay } else { Lane::Others }, request).await
    }

    /// Like [`send`](Self::send), on the connection that is kept open for heartbeats.
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
