//! Sends requests to the agent that is in use.
//!
//! With HTTP/1.1, each request in flight needs a connection of its own, and Consul allows 200 connections from one address. So
//! few requests are in flight at a time. One connection is always kept open for heartbeats. While the agent refuses further
//! connections, all other calls use that connection too: see [`crowding`](super::crowding).
//!
//! If an agent stopped answering, the HTTP client would go on using its open connections to that agent. So all connections to an
//! agent are made and given up together. They are one `Pool`, which takes the place of the single connection that the module
//! [`connections`](crate::backend::server::connections) speaks of.

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

/// The agents of the URL, and the `Pool` of connections to the agent in use.
pub(super) type Connections = connections::Connections<Agents>;

/// The agents of the URL, and what is needed to connect to one of them.
pub(super) struct Agents {
    hosts: Vec<Host>,
    access: Arc<Access>,
    datacenter: Option<String>,
    pub(super) crowding: Arc<Crowding>,
}

impl Agents {
    pub(super) fn new(config: &Config) -> Self {
        let mut hosts = config.hosts.clone();
        // The hosts are tried in random order, so that a thousand clients do not all connect to the first one (`R4`).
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

    /// The number is small, because each call in flight needs a connection, and Consul allows 200 connections from one address.
    /// Heartbeats and blocking queries are not counted in this number.
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

    fn longest(&self, patience: Duration, _is_urgent: bool) -> Duration {
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
            // An agent that knows no leader answers no call until there is a leader, and until then each call occupies a
            // connection. So this agent is not used, and the next agent is tried.
            Ok(leader) if leader.is_empty() => {
                let message = "the cluster has no leader";
                Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
            }
            Ok(_) => {
                if *credentials != *connections.link.access.used() {
                    // No server has accepted these credentials yet. If Consul does not know the token, connecting fails here,
                    // before any other call is made with that token.
                    pool.knows_us().await?;
                }
                if connections.has_connected() {
                    // The connection to an agent was lost, so the agent's other clients probably connect again at this moment,
                    // too. For a short time this process uses only its connection for heartbeats, so that the heartbeats of other
                    // processes find room.
                    connections.link.crowding.begun_anew();
                }
                Ok(pool)
            }
            // This process has had a connection before, so a host that does not answer as an agent now may do so again soon. The
            // error therefore becomes one that is retried.
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
    /// How long a call may take. Most callers give up earlier; calls of background tasks have no other limit than this.
    fn call_limit(&self) -> Duration {
        2 * self.patience
    }

    /// Sends a request. A request that writes, and may have been carried out although it failed, is not sent again: only the
    /// caller knows whether it may be repeated.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.ready(operation).await?.send(request).await
    }

    /// [`send`](Self::send) on the connection that is kept open for heartbeats, without waiting for a slot among the calls in
    /// flight.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.urgent(operation).await?.send_urgently(request).await
    }

    /// Sends a blocking query: the server answers it when something has changed since `index`, or after the time `longest`. The query
    /// fails if the answer comes later than that by more than `late`, or than a call may take. If the
    /// agent refuses further connections of this process, the query must not block: in that case this function waits a moment, and
    /// then sends the query on the connection for heartbeats, as a query that the server answers at once.
    pub(super) async fn wait(
        self: &Arc<Self>,
        query: impl Fn() -> Request,
        index: u64,
        (longest, late): (Duration, Duration),
    ) -> Result<Answer> {
        let crowding = &self.link.crowding;
        if !crowding.gives_way() {
            match self.wait_there(query(), index, longest, late).await {
                Err(failure) if failure.is_full && !failure.is_broken => {}
                answer => return answer.map_err(|failure| failure.error),
            }
        }
        crowding.next_look().await;
        self.urgent("watch").await?.send_on(Lane::GivingWay, query()).await
    }

    /// Sends a blocking query on a connection of its own.
    async fn wait_there(
        self: &Arc<Self>,
        query: Request,
        index: u64,
        longest: Duration,
        late: Duration,
    ) -> Result<Answer, Failure> {
        let query = query.waiting(index, longest);
        let (pool, epoch) = self.reach_for("watch").await.map_err(Failure::harmless)?;
        // The server prolongs the wait by up to a sixteenth, at random, so that not all queries end at the same time.
        let limit = longest + longest / 16 + self.patience.min(late);
        // A blocking query may stay unanswered for long although the agent works. So the connections to the agent are not given
        // up for lack of an answer (`unhurried`).
        let attempt = self.rotation.attempt(epoch).unhurried();
        let asking = self.judged("watch", attempt, pool.ask(Lane::Others, "watch", query));
        let late = || Error::new(ErrorKind::Unavailable, "watch", "no answer in time");
        timeout(limit, asking).await.unwrap_or_else(|_| Err(Failure::harmless(late())))
    }
}

impl Ready<'_, Agents> {
    /// Sends a request on a connection of its own. While the agent refuses further connections of this process, sends it on the
    /// connection that is kept open for heartbeats.
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
