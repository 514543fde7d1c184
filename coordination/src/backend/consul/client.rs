//! Requests, each to the agent in use.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time, and heartbeats have a connection that no other call gets: see [`crowding`](super::crowding).
//! A connection that went silent would be used again from the pool, so what counts as a connection in
//! [`connections`](crate::backend::server::connections) is the whole pool.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use reqwest::header::{CONNECTION, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method, redirect, retry};
use tokio::time::timeout;

use super::config::{Config, headers};
use super::crowding::{Crowding, FULL};
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
/// How long they are kept: Consul closes none by itself.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long calls that are no heartbeats use the same connections. Longer than idle ones are kept: so each of the two clients has
/// none left when its turn comes again.
const SHIFT: Duration = Duration::from_secs(10);
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

/// Which connections a call is made on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// The one that is kept for them.
    Heartbeats,
    Others,
}

/// The agents, and the connections in use.
pub(super) type Connections = connections::Connections<Agents>;

/// How to connect to an agent.
pub(super) struct Agents {
    hosts: Vec<Host>,
    access: Arc<Access>,
    datacenter: Option<String>,
    pub(super) crowding: Arc<Crowding>,
}

/// The connections to one agent.
#[derive(Clone)]
pub(super) struct Pool {
    heartbeats: Client,
    /// Of all other calls, in turn. The one whose turn begins makes its connections before those of the other one are closed: so
    /// it is noticed within a [`SHIFT`] that the agent takes no more, and given way to those who have none.
    others: Arc<[OnceLock<Client>; 2]>,
    place: Place,
    credentials: Arc<Credentials>,
    since: Instant,
    crowding: Arc<Crowding>,
    /// Before the path of a request.
    base: String,
    shown: Host,
    datacenter: Option<String>,
    access: Arc<Access>,
}

impl Agents {
    pub(super) fn new(config: &Config) -> Self {
        let mut hosts = config.hosts.clone();
        // A thousand clients must not all come to the same agent (`R4`).
        hosts.shuffle(&mut env::rng());
        let access = Arc::clone(&config.access);
        let datacenter = config.datacenter.clone();
        Self { hosts, access, datacenter, crowding: Arc::default() }
    }

    /// All its connections go to the same address. The clients of other calls are made when they are needed: most pools that
    /// are made while an agent is away come to nothing.
    fn pool(&self, place: Place, credentials: &Credentials) -> Result<Pool> {
        let host = self.hosts.get(place.host).ok_or_else(|| Error::config("no host"))?;
        let mut shown = host.clone();
        if let Some(name) = credentials.tls.as_ref().and_then(|tls| tls.server_name.clone()) {
            // The server's certificate has another name than the host.
            shown.name = name;
        }
        let scheme = if self.access.is_secure() { "https" } else { "http" };
        Ok(Pool {
            heartbeats: client(credentials, place, &shown, (1, None))?,
            others: Arc::default(),
            place,
            credentials: Arc::new(credentials.clone()),
            since: Instant::now(),
            crowding: Arc::clone(&self.crowding),
            base: format!("{scheme}://{shown}/v1/"),
            shown,
            datacenter: self.datacenter.clone(),
            access: Arc::clone(&self.access),
        })
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
        if connections.has_connected() {
            // All others have lost theirs as well: the first ones that are made are for heartbeats.
            connections.link.crowding.refused();
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

impl Pool {
    /// The agent's word on which server leads; any agent that is there has one.
    pub(super) async fn leader(&self) -> Result<String, Failure> {
        self.leader_on(Lane::Heartbeats).await
    }

    async fn leader_on(&self, lane: Lane) -> Result<String, Failure> {
        let answer = self.fetch(lane, "connect", Request::get("status/leader")).await?;
        let leader = answer.done("connect").and_then(|body| parsed("connect", &body));
        // Whoever has none is no agent. Another host may be one.
        leader.map_err(Failure::broken)
    }

    /// Fails where there are ACLs, and no such token. Anybody may be asked about himself.
    async fn knows_us(&self) -> Result<(), Failure> {
        let answer =
            self.fetch(Lane::Heartbeats, "connect", Request::get("acl/token/self")).await?;
        let refusal = answer.refusal("connect");
        match refusal.kind() {
            ErrorKind::Auth if answer.status == 403 => Err(Failure::harmless(refusal)),
            _ => Ok(()),
        }
    }

    /// Sends a request and reads its answer, which is the agent's: a host that has become another service is left.
    async fn ask(
        &self,
        lane: Lane,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let answer = self.fetch(lane, operation, request).await?;
        let refusal = answer.refusal(operation);
        if answer.status >= 400
            && matches!(refusal.kind(), ErrorKind::Auth | ErrorKind::Permission)
            && self.access.are_others()
        {
            return Err(Failure::harmless(refusal));
        }
        if answer.may_be_of_others() {
            // Whoever has answered, the agent may have had the request.
            let gone = |failure: Failure| match failure.is_full {
                true => Failure { error: failure.error.with_effect(Effect::Unknown), ..failure },
                false => no_agent_now(operation, Effect::Unknown, &failure),
            };
            self.leader_on(lane).await.map_err(gone)?;
        }
        Ok(answer)
    }

    /// The same, whoever answers.
    async fn fetch(
        &self,
        lane: Lane,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let request = match &self.datacenter {
            Some(name) => request.with(&format!("dc={}", key::escape(name))),
            None => request,
        };
        let url = format!("{}{}", self.base, request.path);
        let mut sending = self.client(lane)?.request(request.method, url).body(request.body);
        if lane == Lane::Others && self.crowding.gives_way() {
            // It is kept for nobody.
            sending = sending.header(CONNECTION, HeaderValue::from_static("close"));
        }
        let failed = |error| self.failed(lane, failure(operation, &error));
        let answer = read(operation, sending.send().await.map_err(failed)?).await;
        let answer = answer.map_err(failed)?.map_err(Failure::harmless)?;
        match answer.refusal(operation) {
            // Another agent, or the same one later, may do better.
            refusal if answer.status >= 429 && refusal.kind() == ErrorKind::Unavailable => {
                let is_full = answer.status == 429;
                Err(self.failed(lane, Failure { is_full, ..Failure::broken(refusal) }))
            }
            _ => Ok(answer),
        }
    }

    fn client(&self, lane: Lane) -> Result<&Client, Failure> {
        if lane == Lane::Heartbeats {
            return Ok(&self.heartbeats);
        }
        let is_seconds_turn = self.since.elapsed().as_secs() / SHIFT.as_secs() % 2 == 1;
        let other = &self.others[usize::from(is_seconds_turn)];
        if let Some(client) = other.get() {
            return Ok(client);
        }
        let kept = (IDLE, Some(IDLE_TIMEOUT));
        let made = client(&self.credentials, self.place, &self.shown, kept);
        let made = made.map_err(Failure::harmless)?;
        Ok(other.get_or_init(|| made))
    }

    /// What a failed call says: an agent that takes heartbeats, and no more connections, is not left for that.
    fn failed(&self, lane: Lane, failure: Failure) -> Failure {
        if !failure.is_hang_up && !failure.is_full {
            return failure;
        }
        let (error, mut advice) = (failure.error, String::from(FULL));
        let (operation, mut effect) = (error.operation(), error.effect());
        if operation == "connect" {
            // That was a question.
            effect = Effect::None;
            if !self.access.is_secure() {
                // An agent that wants TLS says so; another server may not.
                advice.push_str(", or want TLS (consul+https://)");
            }
        }
        let message = format!("{}; {advice}", error.message());
        let told = Error::new(error.kind(), operation, message).with_effect(effect);
        if lane == Lane::Heartbeats {
            let is_full = failure.is_full || !self.access.is_secure();
            return Failure { error: told, is_full, ..failure };
        }
        self.crowding.refused();
        Failure { error: told, is_broken: false, is_full: true, ..failure }
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
        self.link.crowding.answered();
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

/// A client for one agent that keeps so many connections without a call for so long.
fn client(
    credentials: &Credentials,
    place: Place,
    shown: &Host,
    (idle, idle_timeout): (usize, Option<Duration>),
) -> Result<Client> {
    let mut builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        // Whether a call may be made again is for those to say who know what it does.
        .retry(retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(idle)
        .pool_idle_timeout(idle_timeout)
        .default_headers(headers(credentials)?);
    builder = match &credentials.tls {
        Some(tls) => with_tls(builder, tls)?,
        // Spares reading the system's.
        None => builder.tls_certs_only([]),
    };
    if let Some(address) = place.address {
        builder = builder.resolve(&shown.name, address);
    }
    builder.build().map_err(|_| {
        Error::config("`ca`, `cert` or `key`: not certificates and a key that go together")
    })
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
