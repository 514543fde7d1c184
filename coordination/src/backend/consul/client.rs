//! Requests: to one agent at a time, another one when it fails or falls silent.
//!
//! HTTP/1.1, where each request under way has a connection for itself. Consul allows 200 from one address, so
//! few are under way at a time. A connection that went silent would be used again from the pool, so the whole
//! pool goes when a call got no answer for longer than a heartbeat may take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method, redirect, retry};
use tokio::sync::{Semaphore, watch};

use super::config::Config;
use super::error::{from_client, from_status, garbled, is_hang_up};
use crate::backend::access::Tls;
use crate::backend::rotation::{Rotation, Turn};
use crate::config::Settings;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::url::{Host, Secret};
use crate::world;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a server may close the connection before it has said a word.
const GREETINGS: usize = 5;
/// Calls under way at a time, see above; heartbeats and what waits are not among them.
const IN_FLIGHT: usize = 4;
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
pub(super) struct Connections {
    hosts: Vec<Host>,
    tls: Option<Tls>,
    token: Option<Secret>,
    datacenter: Option<String>,
    rotation: Rotation<Client>,
    /// A call that takes longer than this has found a silent connection.
    patience: Duration,
    in_flight: Semaphore,
    /// Held by the one who tries whether the server answers again; the others wait for it.
    trying: tokio::sync::Mutex<()>,
}

impl Connections {
    pub(super) fn new(config: &Config, settings: &Settings, patience: Duration) -> Self {
        let mut hosts = config.hosts.clone();
        // Contract R4: a thousand clients must not all come to the same agent.
        hosts.shuffle(&mut world::rng());
        Self {
            rotation: Rotation::new(hosts.len(), settings, patience),
            hosts,
            tls: config.tls.clone(),
            token: config.token.clone(),
            datacenter: config.datacenter.clone(),
            patience,
            in_flight: Semaphore::new(IN_FLIGHT),
            trying: tokio::sync::Mutex::new(()),
        }
    }

    /// Makes a call. While the agents fail, one caller tries for all, and not before the pause is over: a server
    /// that is down, or coming up, is not stormed (contract R4).
    ///
    /// Once an agent has it, it is made once only: a call that failed may have been carried out.
    pub(super) async fn call(&self, operation: &'static str, request: Request) -> Result<Answer> {
        // Who is sent with no time left for the answer is in doubt for nothing, and costs a connection: he had
        // better come again. Never closed, so it is got if there is time.
        let queued = tokio::time::timeout(self.patience / 2, self.in_flight.acquire()).await;
        let _permit = queued.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation, "too many calls are under way")
        })?;
        let _turn = self.turn().await;
        self.urgent_call(operation, request).await
    }

    /// [`call`](Self::call) that waits for no other, for heartbeats.
    pub(super) async fn urgent_call(
        &self,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer> {
        let mut left = self.rotation.servers();
        loop {
            left = left.saturating_sub(1);
            match self.ask(operation, &request, true).await {
                // It did not get there: the next agent may be in reach.
                Err(Failure(error, _)) if left > 0 && error.effect() == Effect::None => {}
                outcome => return outcome.map_err(|failure| failure.0),
            }
        }
    }

    /// A query that the server answers when something changes, or after this time.
    pub(super) async fn wait(&self, request: Request, longest: Duration) -> Result<Answer> {
        drop(self.turn().await);
        let request = request.with(format!("wait={}ms", longest.as_millis()));
        // The server adds up to a sixteenth, so that not all come at once.
        let limit = longest + longest / 16 + self.patience;
        match tokio::time::timeout(limit, self.ask("watch", &request, false)).await {
            Ok(outcome) => outcome.map_err(|failure| failure.0),
            Err(_) => Err(no_answer("watch")),
        }
    }

    /// The first call of all: who is there? Answers the agent that leads.
    pub(super) async fn greet(&self) -> Result<Answer> {
        let mut left = self.rotation.servers();
        for _ in 0..GREETINGS + left {
            let request = Request::get("status/leader");
            match self.ask("connect", &request, true).await {
                // The alert that says why may have lost the race with the end of the connection.
                Err(Failure(_, true)) => {}
                Err(Failure(error, false)) if left > 1 && error.is_transient() => left -= 1,
                outcome => return outcome.map_err(|failure| failure.0),
            }
        }
        let wanted = match self.tls {
            Some(_) => "a client certificate (`cert`, `key`)",
            None => "TLS (consul+https://)",
        };
        let message = format!("the server closes each connection at once: it may want {wanted}");
        Err(Error::new(ErrorKind::Tls, "connect", message))
    }

    async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if !self.rotation.is_failing() {
            return None;
        }
        let turn = self.trying.lock().await;
        if !self.rotation.is_failing() {
            return None;
        }
        if let Some(moment) = self.rotation.turn().pause_until {
            tokio::time::sleep_until(moment.into()).await;
        }
        Some(turn)
    }

    /// Sends a request and reads its answer. `is_prompt`: it may be judged by how long it takes.
    async fn ask(
        &self,
        operation: &'static str,
        request: &Request,
        is_prompt: bool,
    ) -> Result<Answer, Failure> {
        let (client, host, epoch) = self.client().map_err(|error| Failure(error, false))?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut url = format!("{scheme}://{host}/v1/{}", request.path);
        let datacenter = self.datacenter.iter().map(|name| format!("dc={}", escape(name)));
        for (nth, part) in request.query.iter().cloned().chain(datacenter).enumerate() {
            url.push(if nth == 0 { '?' } else { '&' });
            url.push_str(&part);
        }
        let sending = client.request(request.method.clone(), url).body(request.body.clone()).send();
        let attempt = self.rotation.attempt(epoch);
        let attempt = if is_prompt { attempt } else { attempt.unhurried() };
        let answering = async { read(operation, sending.await?).await };
        let outcome = match tokio::time::timeout(self.longest(is_prompt), answering).await {
            Ok(Ok(answer)) => answer.map_err(|error| Failure(error, false)),
            Ok(Err(error)) => Err(Failure(self.explain(operation, &error), is_hang_up(&error))),
            Err(_) => Err(Failure(no_answer(operation), false)),
        };
        attempt.ended(match &outcome {
            Ok(answer) => matches!(answer.status, 429 | 500..=599) && is_transient(answer),
            Err(Failure(error, _)) => error.kind() != ErrorKind::Corrupt,
        });
        outcome
    }

    /// How long a request may take. Most callers have shorter limits of their own; not those in the background, and one of
    /// them may be the one who tries for all.
    fn longest(&self, is_prompt: bool) -> Duration {
        if is_prompt { 2 * self.patience } else { Duration::MAX }
    }

    fn client(&self) -> Result<(Client, String, u64)> {
        let Turn { index, epoch, .. } = self.rotation.turn();
        let host = self.hosts.get(index).or(self.hosts.first());
        let host = host.ok_or_else(|| Error::config("no host"))?;
        let name = self.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let shown = match (&name, host.port) {
            (Some(name), Some(port)) => format!("{name}:{port}"),
            _ => host.to_string(),
        };
        if let Some((client, in_use)) = self.rotation.connected()
            && in_use == epoch
        {
            return Ok((client, shown, epoch));
        }
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
        if name.is_some() {
            builder = builder.dns_resolver(Arc::new(Renamed(host.clone())));
        }
        let client = builder.build().map_err(|_| {
            Error::config("`ca`, `cert` or `key`: not certificates and a key that go together")
        })?;
        self.rotation.install(client.clone(), epoch);
        Ok((client, shown, epoch))
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

    /// Our error for the client's, with advice where the server speaks TLS.
    fn explain(&self, operation: &'static str, error: &reqwest::Error) -> Error {
        let error = from_client(operation, error);
        match error.kind() {
            ErrorKind::Tls if self.tls.is_none() => {
                Error::new(ErrorKind::Tls, operation, "the server wants TLS: use consul+https://")
            }
            _ => error,
        }
    }

    /// Told of every time that the connections are given up.
    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.rotation.epochs()
    }

    /// The agents, for messages.
    pub(super) fn shown(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }
}

fn no_answer(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "no answer in time").with_effect(Effect::Unknown)
}

/// Why there is no answer, and whether the server hung up.
struct Failure(Error, bool);

/// Whether another agent, or the same one later, may do better.
fn is_transient(answer: &Answer) -> bool {
    answer.refusal("watch").kind() == ErrorKind::Unavailable
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

/// Text as a part of a query.
fn escape(text: &str) -> String {
    crate::key::escape(text)
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
