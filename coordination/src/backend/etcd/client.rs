//! Connections: one endpoint at a time, another one when it fails or falls silent.
//!
//! The client crate spreads calls over all endpoints and does not move a failed one to the next, and a
//! connection that went silent hangs it. So each endpoint gets a client of its own, used until a
//! call fails on it or takes longer than a heartbeat may; then the next endpoint gets a fresh one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, ConnectOptions, Error as EtcdError, GetOptions, Identity, StatusResponse,
    TlsOptions,
};
use rand::seq::SliceRandom;
use tokio::sync::{Semaphore, watch};

use super::config::Config;
use super::error::{from_etcd, is_connection_failure, is_hang_up};
use crate::backend::access::Tls;
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::random;
use crate::retry::DecorrelatedJitter;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// While a session can still be saved, a connection is tried at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often a server may close the connection before it has said a word.
const GREETINGS: usize = 5;
/// Calls under way at a time. A thousand at once take longer than the one that is timed may: each would
/// be given up, the connection with it, and all would come again, for ever.
const IN_FLIGHT: usize = 64;

/// The endpoints, and the connection in use.
pub(super) struct Connections {
    endpoints: Vec<String>,
    options: ConnectOptions,
    secure: bool,
    current: Mutex<Current>,
    /// Rises whenever a connection is given up, for streams that live on it.
    epoch: watch::Sender<u64>,
    /// A call that takes longer than this has found a silent connection.
    patience: Duration,
    in_flight: Semaphore,
    /// Held by the one who makes a connection; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// Between connections once all endpoints have failed, while a session can still be saved.
    hurry: DecorrelatedJitter,
    /// The same, when it is too late for that: nothing was heard for as long as the lease.
    calm: DecorrelatedJitter,
    lease: Duration,
    /// A key within the namespace, which may be read.
    probe: String,
}

struct Current {
    client: Option<Arc<Client>>,
    index: usize,
    /// When the last answer came on this connection.
    heard: Option<Instant>,
    /// Connections given up since an answer came.
    failures: usize,
    /// When an answer came on any connection.
    last_heard: Instant,
    hurry: DecorrelatedJitter,
    calm: DecorrelatedJitter,
    /// No new connection before this.
    pause_until: Option<Instant>,
}

/// One use of a connection: dropped unfinished after too long a time, it condemns the connection.
struct Attempt<'a> {
    connections: &'a Connections,
    epoch: u64,
    started: Instant,
    /// Whether the connection failed; `None`: not known, the call was dropped.
    failed: Option<bool>,
}

impl Connections {
    pub(super) fn new(config: &Config, settings: &Settings, patience: Duration) -> Self {
        let mut endpoints = config.endpoints.clone();
        // Contract R4: a thousand clients must not all come to the same endpoint.
        endpoints.shuffle(&mut random::rng());
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            // A member without a leader answers instead of keeping silent.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = &config.user {
            options = options.with_user(user, password.expose());
        }
        if let Some(tls) = &config.tls {
            options = options.with_tls(tls_options(tls));
        }
        let longest = settings.max_backoff.min(settings.heartbeat).min(LONGEST_PAUSE);
        let hurry = DecorrelatedJitter::new(settings.initial_backoff, longest);
        let longest = settings.max_backoff.min(settings.ttl);
        let calm = DecorrelatedJitter::new(settings.initial_backoff, longest);
        Self {
            endpoints,
            options,
            secure: config.tls.is_some(),
            current: Mutex::new(Current {
                client: None,
                index: 0,
                heard: None,
                failures: 0,
                last_heard: Instant::now(),
                hurry,
                calm,
                pause_until: None,
            }),
            epoch: watch::Sender::new(0),
            patience,
            in_flight: Semaphore::new(IN_FLIGHT),
            connecting: tokio::sync::Mutex::new(()),
            hurry,
            calm,
            lease: settings.ttl,
            probe: format!("{}/", settings.namespace),
        }
    }

    /// The connection in use, made if there is none, and its epoch.
    ///
    /// One caller makes it for all, and not before the pause is over that follows when all endpoints
    /// have failed: a server that is down, or coming up, is not stormed (contract R4).
    pub(super) async fn client(&self) -> Result<(Arc<Client>, u64), EtcdError> {
        if let Some(found) = self.connected() {
            return Ok(found);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(found) = self.connected() {
            return Ok(found);
        }
        let (endpoint, epoch, pause_until) = {
            let current = self.current();
            let endpoint = self.endpoints.get(current.index).cloned().unwrap_or_default();
            (endpoint, *self.epoch.borrow(), current.pause_until)
        };
        if let Some(moment) = pause_until {
            tokio::time::sleep_until(moment.into()).await;
        }
        let connected = tokio::time::timeout(self.patience * 4 / 5, self.connect(endpoint)).await;
        let connected =
            connected.unwrap_or_else(|_| Err(EtcdError::EndpointError("no answer in time".into())));
        let client = match connected {
            Ok(client) => Arc::new(client),
            Err(error) => {
                if is_connection_failure(&error) {
                    self.give_up(epoch);
                }
                return Err(error);
            }
        };
        let mut current = self.current();
        if *self.epoch.borrow() == epoch {
            current.client = Some(Arc::clone(&client));
        }
        Ok((client, epoch))
    }

    /// Makes a connection and waits for its first answer.
    ///
    /// The client itself connects with the first call only, and once more with every call that finds no
    /// connection: a hundred waiters would be a hundred tries.
    async fn connect(&self, endpoint: String) -> Result<Client, EtcdError> {
        // With a user this asks for a token.
        let client = Client::connect([endpoint], Some(self.options.clone())).await?;
        let options = GetOptions::new().with_serializable().with_count_only();
        match client.kv_client().get(self.probe.as_str(), Some(options)).await {
            Err(error) if is_connection_failure(&error) => Err(error),
            // A refusal is an answer too; who cares for it makes a call of his own.
            _ => Ok(client),
        }
    }

    fn connected(&self) -> Option<(Arc<Client>, u64)> {
        let current = self.current();
        current.client.as_ref().map(|client| (Arc::clone(client), *self.epoch.borrow()))
    }

    /// The first call of all: who is there?
    pub(super) async fn greet(&self) -> Result<StatusResponse> {
        for _ in 0..GREETINGS {
            match self.raw_call(status).await {
                // The alert that says why may have lost the race with the end of the connection.
                Err(error) if is_hang_up(&error) => {}
                outcome => return outcome.map_err(|error| self.explain("connect", error)),
            }
        }
        let wanted =
            if self.secure { "a client certificate (`cert`, `key`)" } else { "TLS (etcds://)" };
        let message = format!("the server closes each connection at once: it may want {wanted}");
        Err(Error::new(ErrorKind::Tls, "connect", message))
    }

    /// Told of every connection that is given up.
    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Gives up a connection, unless that was done already.
    pub(super) fn give_up(&self, epoch: u64) {
        let mut current = self.current();
        if *self.epoch.borrow() == epoch {
            current.client = None;
            current.heard = None;
            current.failures += 1;
            if current.failures >= self.endpoints.len() {
                let is_too_late = current.last_heard.elapsed() > self.lease;
                let delays = if is_too_late { &mut current.calm } else { &mut current.hurry };
                let pause = delays.next_delay();
                current.pause_until = Some(Instant::now() + pause);
            }
            current.index = (current.index + 1) % self.endpoints.len().max(1);
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    /// An answer came, if only of an error.
    fn heard(&self, epoch: u64) {
        let mut current = self.current();
        if *self.epoch.borrow() == epoch {
            current.last_heard = Instant::now();
            current.heard = Some(current.last_heard);
            if current.failures > 0 {
                current.failures = 0;
                (current.hurry, current.calm) = (self.hurry, self.calm);
                current.pause_until = None;
            }
        }
    }

    /// Whether nothing came for too long a time, while a call of this start was waiting.
    fn is_silent(&self, started: Instant) -> bool {
        let is_long_ago = |at: Instant| at.elapsed() >= self.patience;
        is_long_ago(started) && self.current().heard.is_none_or(is_long_ago)
    }

    /// Makes a call on the connection in use, and on each other endpoint once while it fails.
    ///
    /// The call must be one that may be made twice.
    pub(super) async fn call<T, F>(
        &self,
        operation: &'static str,
        call: impl Fn(Arc<Client>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        self.raw_call(call).await.map_err(|error| self.explain(operation, error))
    }

    /// [`call`](Self::call) with the client's own error, for callers who look at it.
    pub(super) async fn raw_call<T, F>(
        &self,
        call: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        // Never closed, so it is got in any case.
        let _permit = self.in_flight.acquire().await;
        self.urgent_call(call).await
    }

    /// [`raw_call`](Self::raw_call) that waits for no other, for heartbeats.
    pub(super) async fn urgent_call<T, F>(
        &self,
        call: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut left = self.endpoints.len();
        loop {
            left = left.saturating_sub(1);
            let outcome = match self.client().await {
                Ok((client, epoch)) => self.on_epoch(epoch, call(client)).await,
                Err(error) => Err(error),
            };
            let failed = matches!(&outcome, Err(error) if is_connection_failure(error));
            if !failed || left == 0 {
                return outcome;
            }
        }
    }

    /// Runs something on the connection of this epoch, which is judged by it as by a call.
    pub(super) async fn on_epoch<T>(
        &self,
        epoch: u64,
        work: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, EtcdError> {
        let mut attempt =
            Attempt { connections: self, epoch, started: Instant::now(), failed: None };
        let outcome = work.await;
        attempt.failed = Some(matches!(&outcome, Err(error) if is_connection_failure(error)));
        outcome
    }

    /// Our error for the client's, with advice where the connection was cut before a word was said.
    pub(super) fn explain(&self, operation: &'static str, error: EtcdError) -> Error {
        let error = from_etcd(operation, error);
        match error.kind() {
            ErrorKind::Tls if !self.secure => {
                Error::new(ErrorKind::Tls, operation, "the server wants TLS: use etcds://")
                    .with_source(error)
            }
            _ => error,
        }
    }

    /// The endpoints, for messages.
    pub(super) fn shown(&self) -> String {
        self.endpoints.join(",")
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let connections = self.connections;
        match self.failed {
            Some(true) => connections.give_up(self.epoch),
            Some(false) => connections.heard(self.epoch),
            // A caller who lost interest early says nothing about the connection. One whose time ran
            // out does, unless others got answers meanwhile: then it is slow, and not silent.
            None if connections.is_silent(self.started) => connections.give_up(self.epoch),
            None => {}
        }
    }
}

async fn status(client: Arc<Client>) -> Result<StatusResponse, EtcdError> {
    client.maintenance_client().status().await
}

fn tls_options(tls: &Tls) -> TlsOptions {
    let mut options = TlsOptions::new();
    options = match &tls.ca {
        Some(ca) => options.ca_certificate(Certificate::from_pem(ca)),
        None => options.with_enabled_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(cert, key.expose()));
    }
    if let Some(name) = &tls.server_name {
        options = options.domain_name(name);
    }
    options
}
