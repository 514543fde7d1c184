//! Requests, each to the agent in use.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time. A connection that went silent would be used again from the pool, so what counts as a
//! connection in [`connections`](crate::backend::server::connections) is the whole pool.

use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method, redirect, retry};
use tokio::time::timeout;

use super::config::{Config, headers};
use super::error::{failure, from_status, garbled};
use super::kv::parsed;
use crate::backend::server::connections::{self, Failure, Link, Ready};
use crate::backend::server::credentials::{Access, Credentials, Tls};
use crate::backend::server::in_time;
use crate::backend::server::places::Place;
use crate::backend::server::rotation::Turn;
use crate::env;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;
use crate::url::Host;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that are kept for the next call.
const IDLE: usize = 4;
/// Consul closes none by itself. Heartbeats keep one in use; those that many calls at once have made go soon.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How large an answer may be: a thousand full entries and their values fit.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// What to ask.
pub(super) struct Request {
    method: Method,
    /// After `/v1/`, with its query.
    path: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: Vec::new() }
    }

    pub(super) fn put(path: impl Into<String>, body: Vec<u8>) -> Self {
        Self { method: Method::PUT, path: path.into(), body }
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, path: path.into(), body: Vec::new() }
    }

    /// With this, `name` or `name=value`, in its query.
    pub(super) fn with(mut self, query: &str) -> Self {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(query);
        self
    }
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    /// For the next blocking query.
    pub(super) index: u64,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// The body of an answer that is no refusal.
    pub(super) fn done(self, operation: &'static str) -> Result<Vec<u8>> {
        match self.status {
            200 => Ok(self.body),
            _ => Err(self.refusal(operation)),
        }
    }

    pub(super) fn refusal(&self, operation: &'static str) -> Error {
        from_status(operation, self.status, &self.text())
    }

    /// Whether another service may have given it: what an agent has done it answers in JSON, where it finds no key it gives an
    /// index, and refusals are in words that we know.
    fn may_be_of_others(&self) -> bool {
        match self.status {
            200 | 409 => {
                !matches!(self.body.first(), Some(b'{' | b'[' | b'"' | b't' | b'f' | b'n'))
            }
            403 => {
                let text = self.text();
                !text.contains("ACL not found") && !text.contains("Permission denied")
            }
            404 => self.index == 0,
            500.. => false,
            _ => true,
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The agents, and the connections in use.
pub(super) type Connections = connections::Connections<Agents>;

/// How to connect to an agent.
pub(super) struct Agents {
    hosts: Vec<Host>,
    access: Arc<Access>,
    datacenter: Option<String>,
}

/// The connections to one agent.
#[derive(Clone)]
pub(super) struct Pool {
    client: Client,
    /// Before the path of a request.
    base: String,
    datacenter: Option<String>,
    access: Arc<Access>,
}

impl Agents {
    pub(super) fn new(config: &Config) -> Self {
        let mut hosts = config.hosts.clone();
        // A thousand clients must not all come to the same agent (`R4`).
        hosts.shuffle(&mut env::rng());
        let access = Arc::clone(&config.access);
        Self { hosts, access, datacenter: config.datacenter.clone() }
    }

    /// All its connections go to the same address.
    fn pool(&self, place: Place, credentials: &Credentials) -> Result<Pool> {
        let host = self.hosts.get(place.host).ok_or_else(|| Error::config("no host"))?;
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            // Whether a call may be made again is for those to say who know what it does.
            .retry(retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .default_headers(headers(credentials)?);
        builder = match &credentials.tls {
            Some(tls) => with_tls(builder, tls)?,
            // Spares reading the system's.
            None => builder.tls_certs_only([]),
        };
        let mut shown = host.clone();
        if let Some(name) = credentials.tls.as_ref().and_then(|tls| tls.server_name.clone()) {
            // The server's certificate has another name than the host.
            shown.name = name;
        }
        if let Some(address) = place.address {
            builder = builder.resolve(&shown.name, address);
        }
        let client = builder.build().map_err(|_| {
            Error::config("`ca`, `cert` or `key`: not certificates and a key that go together")
        })?;
        let scheme = if self.access.is_secure() { "https" } else { "http" };
        let base = format!("{scheme}://{shown}/v1/");
        let (datacenter, access) = (self.datacenter.clone(), Arc::clone(&self.access));
        Ok(Pool { client, base, datacenter, access })
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
        let pool = connections.link.pool(turn.place, credentials).map_err(Failure::harmless)?;
        match pool.leader().await {
            Ok(_) if *credentials == *connections.link.access.used() => Ok(pool),
            // It is told in time that nobody has this token.
            Ok(_) => pool.knows_us().await.map(|()| pool),
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

impl Pool {
    /// The agent's word on which server leads; any agent that is there has one.
    pub(super) async fn leader(&self) -> Result<String, Failure> {
        let answer = self.fetch("connect", Request::get("status/leader")).await?;
        let leader = answer.done("connect").and_then(|body| parsed("connect", &body));
        // Whoever has none is no agent. Another host may be one.
        leader.map_err(Failure::broken)
    }

    /// Fails where there are ACLs, and no such token. Anybody may be asked about himself.
    async fn knows_us(&self) -> Result<(), Failure> {
        let answer = self.fetch("connect", Request::get("acl/token/self")).await?;
        let refusal = answer.refusal("connect");
        match refusal.kind() {
            ErrorKind::Auth if answer.status == 403 => Err(Failure::harmless(refusal)),
            _ => Ok(()),
        }
    }

    /// Sends a request and reads its answer, which is the agent's: a host that has become another service is left.
    async fn ask(&self, operation: &'static str, request: Request) -> Result<Answer, Failure> {
        let answer = self.fetch(operation, request).await?;
        let refusal = answer.refusal(operation);
        if answer.status >= 400
            && matches!(refusal.kind(), ErrorKind::Auth | ErrorKind::Permission)
            && self.access.are_others()
        {
            return Err(Failure::harmless(refusal));
        }
        if answer.may_be_of_others() {
            // Whoever has answered, the agent may have had the request.
            let gone = |failure| no_agent_now(operation, Effect::Unknown, &failure);
            self.leader().await.map_err(gone)?;
        }
        Ok(answer)
    }

    /// The same, whoever answers.
    async fn fetch(&self, operation: &'static str, request: Request) -> Result<Answer, Failure> {
        let request = match &self.datacenter {
            Some(name) => request.with(&format!("dc={}", key::escape(name))),
            None => request,
        };
        let url = format!("{}{}", self.base, request.path);
        let sending = self.client.request(request.method, url).body(request.body);
        let failed = |error| failure(operation, &error);
        let answer = read(operation, sending.send().await.map_err(failed)?).await;
        let answer = answer.map_err(failed)?.map_err(Failure::harmless)?;
        match answer.refusal(operation) {
            // Another agent, or the same one later, may do better.
            refusal if answer.status >= 429 && refusal.kind() == ErrorKind::Unavailable => {
                Err(Failure::broken(refusal))
            }
            _ => Ok(answer),
        }
    }
}

impl Connections {
    /// Makes a call. It is made once only: one that failed may have been carried out.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.ready(operation).await?.send(request).await
    }

    /// [`send`](Self::send) that waits for no other, for heartbeats.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        self.urgent(operation).await?.send(request).await
    }

    /// A query that the server answers when something changes, or after this time.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: Request,
        longest: Duration,
    ) -> Result<Answer> {
        let request = request.with(&format!("wait={}ms", longest.as_millis()));
        let (pool, epoch) = self.reach_for("watch").await?;
        // The server adds up to a sixteenth, so that not all come at once.
        let limit = longest + longest / 16 + self.patience;
        // Its silence says nothing.
        let attempt = self.rotation.attempt(epoch).unhurried();
        let asking = self.judged("watch", attempt, pool.ask("watch", request));
        in_time(limit, async { asking.await.map_err(|failure| failure.error) }).await
    }
}

impl Ready<'_, Agents> {
    pub(super) async fn send(self, request: Request) -> Result<Answer> {
        // Most callers have shorter limits of their own; not those in the background.
        let (operation, limit) = (self.operation, 2 * self.connections.patience);
        let ask = async |pool: Pool| {
            let asking = timeout(limit, pool.ask(operation, request)).await;
            asking.unwrap_or_else(|_| Err(Failure::late(operation, limit, Effect::Unknown)))
        };
        self.make(ask).await
    }
}

/// A host that was an agent does not answer as one.
fn no_agent_now(operation: &'static str, effect: Effect, failure: &Failure) -> Failure {
    let message = format!("the host is no agent now: {}", failure.error);
    Failure::broken(Error::new(ErrorKind::Unavailable, operation, message).with_effect(effect))
}

/// Reads an answer, as far as it is as long as it may be.
async fn read(
    operation: &'static str,
    mut response: reqwest::Response,
) -> reqwest::Result<Result<Answer>> {
    let index = response.headers().get("X-Consul-Index");
    let index = index.and_then(|index| index.to_str().ok()?.parse().ok()).unwrap_or_default();
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > LONGEST_ANSWER {
            return Ok(Err(garbled(operation, "the answer is too long")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Ok(Answer { status, index, body }))
}

fn with_tls(builder: ClientBuilder, tls: &Tls) -> Result<ClientBuilder> {
    let broken =
        |option: &'static str| move |_| Error::config(format!("option `{option}`: not PEM"));
    let mut builder = builder;
    if let Some(ca) = &tls.ca {
        let certificates = Certificate::from_pem_bundle(ca).map_err(broken("ca"))?;
        builder = builder.tls_certs_only(certificates);
    }
    if let Some((cert, key)) = &tls.identity {
        let pem = [cert.as_slice(), b"\n", key.expose().as_bytes()].concat();
        builder = builder.identity(Identity::from_pem(&pem).map_err(broken("cert"))?);
    }
    Ok(builder)
}
