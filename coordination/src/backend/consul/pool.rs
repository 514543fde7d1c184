//! The connections to one agent.
//!
//! With HTTP/1.1, each request in flight needs a connection of its own. One connection is always kept open for heartbeats. While
//! the agent refuses further connections, all other calls use that connection too: see [`crowding`](super::crowding).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use reqwest::{Client, redirect, retry};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::config::headers;
use super::crowding::{Crowding, FULL};
use super::error::{failure, garbled};
use super::request::{Answer, Request, parsed};
use super::tls::with_tls;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::places::Place;
use crate::backend::server::tls::Tls;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;
use crate::panics::caught;
use crate::url::Host;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How many unused connections the HTTP client for other calls than heartbeats keeps open, so that the next calls can use them.
const IDLE: usize = 4;
/// How long such an unused connection stays open. It has to be closed here, because Consul itself closes no unused connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The two HTTP clients in `Inner::others` are used alternately, each for this long. This is longer than [`IDLE_TIMEOUT`]: so
/// when a client is used again, all its old connections have been closed.
const SHIFT: Duration = Duration::from_secs(10);
/// How large an answer may be, in bytes: a thousand entries of full size fit.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// On which connection a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The connection that is always kept open for heartbeats. Calls on it are made one after the other: two at the same time
    /// would need a second connection, which the agent might refuse.
    Kept,
    /// The same connection as for [`Kept`](Self::Kept), but for other calls than heartbeats, while the agent refuses this process
    /// further connections (`crowding.rs`). Only one such call at a time may use the connection or queue for it, so a heartbeat
    /// waits for at most one such call.
    GivingWay,
    /// Any other connection: an unused one that is still open, or a new one.
    Others,
}

/// The connections to one agent.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    kept: Client,
    /// Held by the call that uses the connection for heartbeats, so that such calls are made one after the other.
    kept_turn: Arc<Mutex<()>>,
    /// Held by the one call of [`Lane::GivingWay`] that waits for the connection for heartbeats, or uses it. Further such calls
    /// wait for this lock.
    giving_way: Arc<Mutex<()>>,
    /// Two HTTP clients for all other calls than heartbeats, used alternately. When a client is used again after a [`SHIFT`], it
    /// has no open connection and must make new ones. So if the agent refuses further connections, this process notices it within
    /// a [`SHIFT`], and then leaves room for processes that have no connection yet (`crowding.rs`).
    others: [OnceLock<Client>; 2],
    place: Place,
    credentials: Credentials,
    since: Instant,
    crowding: Arc<Crowding>,
    /// The URL up to the path of a request.
    base: String,
    shown: Host,
    datacenter: Option<String>,
    /// How long a call on the connection for heartbeats may take.
    limit: Duration,
    access: Arc<Access>,
}

impl Pool {
    /// All connections of the pool go to the same address. The two HTTP clients for other calls are made only when such a call is
    /// made: while an agent is down, most pools are given up before any such call is made.
    pub(super) fn new(
        (host, place): (&Host, Place),
        (datacenter, limit): (Option<String>, Duration),
        (access, credentials): (&Arc<Access>, &Credentials),
        crowding: &Arc<Crowding>,
    ) -> Result<Self> {
        let mut shown = host.clone();
        if let Some(name) = credentials.tls.as_ref().and_then(Tls::server_name) {
            // The server's certificate has this name in place of the host's. The HTTP client compares the certificate with the
            // name in the request's URL, so requests are sent to this name; `client` maps the name to the host's address.
            shown.name = name.to_owned();
        }
        let scheme = if access.is_secure() { "https" } else { "http" };
        Ok(Self(Arc::new(Inner {
            kept: client(credentials, place, &shown, (1, None), CONNECT_TIMEOUT)?,
            kept_turn: Arc::default(),
            giving_way: Arc::default(),
            others: Default::default(),
            place,
            credentials: credentials.clone(),
            since: Instant::now(),
            crowding: Arc::clone(crowding),
            base: format!("{scheme}://{shown}/v1/"),
            shown,
            datacenter,
            limit,
            access: Arc::clone(access),
        })))
    }

    /// Asks the agent which server is the leader. Every agent answers that, so the answer shows that an agent is there.
    pub(super) async fn leader(&self) -> Result<String, Failure> {
        self.leader_on(Lane::Kept).await
    }

    async fn leader_on(&self, lane: Lane) -> Result<String, Failure> {
        let answer = self.fetch(lane, "connect", Request::get("status/leader")).await?;
        let leader = answer.done("connect").and_then(|body| parsed("connect", &body));
        // A host that gives another answer is no agent. The pool is given up, because another host of the URL may be an agent.
        leader.map_err(Failure::broken)
    }

    /// Fails if Consul has ACLs and does not know the token. The request reads the token itself. No right is needed for that, so
    /// a refusal can only mean that the token is unknown.
    pub(super) async fn knows_us(&self) -> Result<(), Failure> {
        let answer = self.fetch(Lane::Kept, "connect", Request::get("acl/token/self")).await?;
        let refusal = answer.refusal("connect");
        match refusal.kind() {
            ErrorKind::Auth if answer.status == 403 => Err(Failure::harmless(refusal)),
            _ => Ok(()),
        }
    }

    /// Sends a request and reads its answer. If another service than Consul may have given the answer, asks the host whether it
    /// still is an agent. If the host is no agent, the returned failure makes the caller give up the pool.
    pub(super) async fn ask(
        &self,
        lane: Lane,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let answer = self.fetch(lane, operation, request).await?;
        let refusal = answer.refusal(operation);
        if answer.status >= 400
            && matches!(refusal.kind(), ErrorKind::Auth | ErrorKind::Permission)
            && self.0.access.are_others()
        {
            return Err(Failure::harmless(refusal));
        }
        if answer.may_be_of_others() {
            // This answer may come from another service than an agent, such as a proxy before the agent. The request for the
            // leader, below, finds out whether there is an agent. If no agent answers the request for the leader, our own request
            // may have been passed on to an agent nevertheless, so the effect of our own request is unknown.
            let gone = |failure: Failure| match failure.is_full {
                true => Failure { error: failure.error.with_effect(Effect::Unknown), ..failure },
                false => no_agent_now(operation, Effect::Unknown, &failure),
            };
            self.leader_on(lane).await.map_err(gone)?;
        }
        Ok(answer)
    }

    /// [`ask`](Self::ask), without checking that an agent has answered.
    async fn fetch(
        &self,
        lane: Lane,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        match lane {
            Lane::Kept => self.fetch_on_kept(None, operation, request).await,
            Lane::GivingWay => self.fetch_giving_way(operation, request).await,
            Lane::Others => {
                let (sent, again) = (Instant::now(), request.clone());
                match self.exchange(lane, operation, request).await {
                    // The agent refused the connection. The request only reads, or certainly was not carried out: so it is sent
                    // once more, on the connection for heartbeats.
                    Err(failure)
                        if failure.is_full
                            && !failure.is_broken
                            && !again.waits
                            && (again.is_read || failure.error.effect() == Effect::None) =>
                    {
                        self.fetch_giving_way(operation, again).await
                    }
                    answer => {
                        if answer.is_ok() {
                            self.0.crowding.answered(sent);
                        }
                        answer
                    }
                }
            }
        }
    }

    async fn fetch_giving_way(
        &self,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let first = Arc::clone(&self.0.giving_way).lock_owned().await;
        self.fetch_on_kept(Some(first), operation, request).await
    }

    /// Makes a call on the connection for heartbeats, in a task of its own that goes on if the caller is dropped. Without the
    /// task, the HTTP client would close the connection when a caller is dropped before the answer, and the agent might refuse a
    /// new one. A caller that is dropped while it waits for the connection has sent nothing.
    async fn fetch_on_kept(
        &self,
        first: Option<OwnedMutexGuard<()>>,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let (pool, turn) = (self.clone(), Arc::clone(&self.0.kept_turn).lock_owned().await);
        let fetching = tokio::spawn(async move {
            let _turns = (first, turn);
            let exchange = pool.exchange(Lane::Kept, operation, request);
            match timeout(pool.0.limit, caught(operation, exchange)).await {
                Ok(answer) => answer.unwrap_or_else(|panicked| {
                    Err(Failure::broken(panicked.with_effect(Effect::Unknown)))
                }),
                Err(_) => Err(Failure::late(operation, pool.0.limit, Effect::Unknown)),
            }
        });
        let gone = || Error::new(ErrorKind::Unavailable, operation, "the runtime has ended");
        let gone = |_| Err(Failure::broken(gone().with_effect(Effect::Unknown)));
        fetching.await.unwrap_or_else(gone)
    }

    async fn exchange(
        &self,
        lane: Lane,
        operation: &'static str,
        request: Request,
    ) -> Result<Answer, Failure> {
        let client = match lane {
            Lane::Kept | Lane::GivingWay => &self.0.kept,
            Lane::Others => self.other()?,
        };
        let request = match &self.0.datacenter {
            Some(name) => request.with(&format!("dc={}", key::escape(name))),
            None => request,
        };
        let url = format!("{}{}", self.0.base, request.path);
        let sending = client.request(request.method, url).body(request.body);
        let failed = |error| self.unanswered(lane, failure(operation, &error));
        let answer = read(operation, sending.send().await.map_err(failed)?).await;
        let answer = answer.map_err(failed)?.map_err(Failure::harmless)?;
        match answer.refusal(operation) {
            // This agent cannot carry out the request now. Perhaps another agent can, or this agent can later: so the answer
            // becomes a failure that can be retried.
            refusal if refusal.kind() == ErrorKind::Unavailable => {
                let failure = Failure::broken(refusal);
                match answer.status {
                    429 => Err(self.unanswered(lane, Failure { is_full: true, ..failure })),
                    // A failed call on another connection than the one for heartbeats is no reason to give up the pool. If the
                    // agent stays unavailable, a heartbeat will fail too, and then the pool is given up.
                    _ if lane == Lane::Others => Err(Failure { is_broken: false, ..failure }),
                    _ => Err(failure),
                }
            }
            _ => Ok(answer),
        }
    }

    fn other(&self) -> Result<&Client, Failure> {
        let is_seconds_turn = self.0.since.elapsed().as_secs() / SHIFT.as_secs() % 2 == 1;
        let other = &self.0.others[usize::from(is_seconds_turn)];
        if let Some(client) = other.get() {
            return Ok(client);
        }
        let kept = (IDLE, Some(IDLE_TIMEOUT));
        // The time limit for making a connection is short: after a failure there must be time left to send the request on the
        // connection for heartbeats.
        let connecting = CONNECT_TIMEOUT.min(self.0.limit / 6);
        let made = client(&self.0.credentials, self.0.place, &self.0.shown, kept, connecting);
        // Making a client reads files of the system. That fails while this process has no file descriptor left, and may succeed
        // later. So the error becomes one that is retried.
        let now = |error: Error| Error::new(ErrorKind::Unavailable, "connect", error.message());
        let made = made.map_err(|error| Failure::harmless(now(error)))?;
        Ok(other.get_or_init(|| made))
    }

    /// The failure of a call that had no answer within `limit`. A call on the connection for heartbeats may only have waited for
    /// the calls before it, so its missing answer is no reason to give up the pool.
    pub(super) fn late(&self, lane: Lane, operation: &'static str, limit: Duration) -> Failure {
        let failure = Failure::late(operation, limit, Effect::Unknown);
        match lane {
            Lane::Others => self.unanswered(lane, failure),
            Lane::Kept | Lane::GivingWay => Failure { is_broken: false, is_full: true, ..failure },
        }
    }

    /// The failure of a call that got no answer. If the call was on another connection than the one for heartbeats, the pool is
    /// not given up: the agent may only have refused that connection. Whether the agent works is seen on the connection for
    /// heartbeats.
    pub(super) fn unanswered(&self, lane: Lane, failure: Failure) -> Failure {
        let error = match failure.is_hang_up || failure.is_full {
            true => self.told(&failure),
            false => failure.error.clone(),
        };
        if lane != Lane::Others {
            let is_full = failure.is_full || failure.is_hang_up && !self.0.access.is_secure();
            return Failure { error, is_full, ..failure };
        }
        if self.0.access.are_others() {
            // The files that the URL names hold other credentials now, and the agent may have closed the connection because it
            // wants these. So `failure.is_broken` stays as it is: the process has to connect again, with the new credentials.
            return Failure { error, ..failure };
        }
        self.0.crowding.refused();
        let again = Error::new(ErrorKind::Unavailable, error.operation(), error.message());
        let error = again.with_effect(error.effect());
        Failure { error, is_broken: false, is_full: true, ..failure }
    }

    fn told(&self, failure: &Failure) -> Error {
        let (error, mut advice) = (&failure.error, String::from(FULL));
        let (operation, mut effect) = (error.operation(), error.effect());
        if operation == "connect" {
            // No request that is sent while connecting changes anything, so a failed one has had no effect.
            effect = Effect::None;
            if !self.0.access.is_secure() {
                // A Consul agent that wants TLS answers with an error that says so. Another server may just close the connection:
                // for that case the message mentions TLS.
                advice.push_str(", or want TLS (consul+https://)");
            }
        }
        let message = format!("{}; {advice}", error.message());
        Error::new(error.kind(), operation, message).with_effect(effect)
    }
}

/// The failure if a host that was an agent no longer answers as one.
pub(super) fn no_agent_now(operation: &'static str, effect: Effect, failure: &Failure) -> Failure {
    let message = format!("the host is no agent now: {}", failure.error);
    Failure::broken(Error::new(ErrorKind::Unavailable, operation, message).with_effect(effect))
}

/// Reads an answer; an error if it is longer than [`LONGEST_ANSWER`].
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

/// An HTTP client for one agent. It keeps up to `idle` unused connections open, each for at most `idle_timeout`, or without a
/// limit if that is `None`.
fn client(
    credentials: &Credentials,
    place: Place,
    shown: &Host,
    (idle, idle_timeout): (usize, Option<Duration>),
    connecting: Duration,
) -> Result<Client> {
    let mut builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        // The HTTP client must not send a request again by itself: only the callers know whether their call may be made twice.
        .retry(retry::never())
        .connect_timeout(connecting)
        .pool_max_idle_per_host(idle)
        .pool_idle_timeout(idle_timeout)
        .default_headers(headers(credentials)?);
    builder = with_tls(builder, credentials.tls.as_ref())?;
    if let Some(address) = place.address {
        builder = builder.resolve(&shown.name, address);
    }
    built(|| builder.build())
}

/// Builds an HTTP client. reqwest panics if another crate has turned on its feature `rustls-no-provider`, this library has no TLS whose
/// provider it could be given, and the process has none: an error that says so, in place of tries that all end alike.
fn built(build: impl FnOnce() -> reqwest::Result<Client>) -> Result<Client> {
    const CANNOT: &str = "the HTTP client cannot be set up";
    let built = catch_unwind(AssertUnwindSafe(build)).map_err(|_| {
        let why = "if another crate has turned on `rustls-no-provider` of reqwest, turn on the feature `tls` of coordination, or set the \
                   process's default provider of rustls before connecting";
        Error::config(format!("{CANNOT}: {why}"))
    })?;
    built.map_err(|error| Error::config(CANNOT).with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_client_without_a_provider_of_tls_is_a_wrong_configuration() {
        let error = built(|| panic!("no provider")).expect_err("it panics");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Config, Effect::None));
        assert!(error.message().contains("`rustls-no-provider`"), "{error}");
    }
}
