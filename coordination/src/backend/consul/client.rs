//! Requests, each to the agent in use.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time. A connection that went silent would be used again from the pool, so what counts as a
//! connection in [`connections`](crate::backend::server::connections) is the whole pool.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method, redirect, retry};
use tokio::time::timeout;

use super::config::Config;
use super::error::{failure, from_status, garbled};
use crate::backend::server::access::Tls;
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::rotation::Turn;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;
use crate::url::{Host, Secret};
use crate::world;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that are kept for the next call.
const IDLE: usize = 4;
/// Consul closes none by itself. Heartbeats keep one in use; those that many calls at once have made go soon.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How large an answer may be: a thousand full entries and their values fit.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// What to ask.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    /// After `/v1/`.
    pub(super) path: String,
    /// Each `name` or `name=value`.
    pub(super) query: Vec<String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), query: Vec::new(), body: Vec::new() }
    }

    pub(super) fn put(path: impl Into<String>, body: Vec<u8>) -> Self {
        Self { method: Method::PUT, path: path.into(), query: Vec::new(), body }
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, path: path.into(), query: Vec::new(), body: Vec::new() }
    }

    pub(super) fn with(mut self, query: impl Into<String>) -> Self {
        self.query.push(query.into());
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

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The agents, and the connections in use.
pub(super) type Connections = connections::Connections<Agents>;

/// How to connect to an agent.
pub(super) struct Agents {
    hosts: Vec<Host>,
    tls: Option<Tls>,
    token: Option<Secret>,
    datacenter: Option<String>,
}

/// The connections to one agent.
#[derive(Clone)]
pub(super) struct Pool {
    client: Client,
    /// Before the path of a request.
    base: String,
    datacenter: Option<String>,
}

impl Agents {
    pub(super) fn new(config: &Config) -> Self {
        let mut hosts = config.hosts.clone();
        // A thousand clients must not all come to the same agent (`R4`).
        hosts.shuffle(&mut world::rng());
        let (tls, token) = (config.tls.clone(), config.token.clone());
        Self { hosts, tls, token, datacenter: config.datacenter.clone() }
    }

    fn pool(&self, index: usize) -> Result<Pool> {
        let host = self.hosts.get(index).ok_or_else(|| Error::config("no host"))?;
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            // Whether a call may be made again is for those to say who know what it does.
            .retry(retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .default_headers(self.headers()?);
        builder = match &self.tls {
            Some(tls) => with_tls(builder, tls)?,
            // Spares reading the system's.
            None => builder.tls_certs_only([]),
        };
        let mut shown = host.clone();
        if let Some(name) = self.tls.as_ref().and_then(|tls| tls.server_name.clone()) {
            builder = builder.dns_resolver(Arc::new(Renamed(host.clone())));
            shown.name = name;
        }
        let client = builder.build().map_err(|_| {
            Error::config("`ca`, `cert` or `key`: not certificates and a key that go together")
        })?;
        let scheme = if self.is_secure() { "https" } else { "http" };
        let base = format!("{scheme}://{shown}/v1/");
        Ok(Pool { client, base, datacenter: self.datacenter.clone() })
    }

    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let mut value = HeaderValue::from_str(token.expose())
                .map_err(|_| Error::config("a token is made of visible ASCII characters"))?;
            value.set_sensitive(true);
            headers.insert("X-Consul-Token", value);
        }
        Ok(headers)
    }
}

impl Link for Agents {
    type Connection = Pool;
    type Failed = Failure;

    /// Consul allows 200 connections from one address. Heartbeats and what waits are not among these.
    const IN_FLIGHT: usize = 4;
    const SECURE: &'static str = "consul+https";
    const WANTS_TLS: &'static str = "the server wants TLS: use consul+https://";

    fn servers(&self) -> usize {
        self.hosts.len()
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    fn longest(&self, patience: Duration, _is_first: bool) -> Duration {
        2 * patience
    }

    async fn connect(connections: &Arc<Connections>, turn: Turn) -> Result<Pool, Failure> {
        let pool = connections.link.pool(turn.index).map_err(Failure::harmless)?;
        pool.leader().await?;
        Ok(pool)
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

impl Pool {
    /// The agent's word on which server leads; any agent that is there has one.
    pub(super) async fn leader(&self) -> Result<Answer, Failure> {
        self.ask("connect", &Request::get("status/leader")).await
    }

    /// Sends a request and reads its answer.
    async fn ask(&self, operation: &'static str, request: &Request) -> Result<Answer, Failure> {
        let mut url = format!("{}{}", self.base, request.path);
        let datacenter = self.datacenter.iter().map(|name| format!("dc={}", key::escape(name)));
        for (nth, part) in request.query.iter().cloned().chain(datacenter).enumerate() {
            url.push(if nth == 0 { '?' } else { '&' });
            url.push_str(&part);
        }
        let sending = self.client.request(request.method.clone(), url).body(request.body.clone());
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
    /// Makes a call.
    ///
    /// Once an agent has it, it is made once only: a call that failed may have been carried out.
    pub(super) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        // One that is sent when no time is left for its answer costs a connection, and leaves its caller in doubt. It is
        // refused before it is sent, and its caller comes again.
        let room = timeout(self.patience / 2, self.room()).await;
        let _room = room.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation, "too many calls are under way")
        })?;
        self.send_urgently(operation, request).await
    }

    /// [`send`](Self::send) that waits for no other, for heartbeats.
    pub(super) async fn send_urgently(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        let mut left = self.link.servers();
        loop {
            left = left.saturating_sub(1);
            let (pool, epoch) = self.reach_for(operation).await?;
            // Most callers have shorter limits of their own; not those in the background.
            let asking = timeout(2 * self.patience, pool.ask(operation, &request));
            let asking = async { asking.await.unwrap_or_else(|_| Err(no_answer(operation))) };
            match self.on_epoch(operation, epoch, asking).await {
                // It did not get there: the next agent may be in reach.
                Err(error)
                    if left > 0 && error.is_transient() && error.effect() == Effect::None => {}
                outcome => return outcome,
            }
        }
    }

    /// A query that the server answers when something changes, or after this time.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: Request,
        longest: Duration,
    ) -> Result<Answer> {
        let request = request.with(format!("wait={}ms", longest.as_millis()));
        let (pool, epoch) = self.reach_for("watch").await?;
        // The server adds up to a sixteenth, so that not all come at once.
        let limit = longest + longest / 16 + self.patience;
        let waiting = self.wait_on_epoch("watch", epoch, pool.ask("watch", &request));
        timeout(limit, waiting).await.unwrap_or_else(|_| Err(no_answer("watch").error))
    }
}

fn no_answer(operation: &'static str) -> Failure {
    let error = Error::new(ErrorKind::Unavailable, operation, "no answer in time");
    Failure::broken(error.with_effect(Effect::Unknown))
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

/// Finds this host, whatever name it is asked for: the server's certificate has another one.
struct Renamed(Host);

impl Resolve for Renamed {
    fn resolve(&self, _name: Name) -> Resolving {
        let host = self.0.name.clone();
        Box::pin(async move {
            // The port is the URL's.
            let found = tokio::net::lookup_host((host, 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
