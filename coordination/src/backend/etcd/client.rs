//! Connections: one endpoint at a time, another one when it fails or falls silent.
//!
//! The client crate spreads calls over all endpoints and does not move a failed one to the next, and a
//! connection that went silent hangs it. So each endpoint gets a client of its own, used until a
//! call fails on it or takes longer than a heartbeat may; then the next endpoint gets a fresh one.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error as EtcdError, GetOptions, Identity, StatusResponse,
    TlsOptions,
};
use rand::seq::SliceRandom;
use tokio::sync::{Semaphore, watch};

use super::config::Config;
use super::error::{from_etcd, is_connection_failure, is_hang_up};
use crate::backend::access::Tls;
use crate::backend::rotation::{Rotation, Turn};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::world;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
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
    rotation: Rotation<Arc<Client>>,
    /// A call that takes longer than this has found a silent connection.
    patience: Duration,
    in_flight: Semaphore,
    /// Held by the one who makes a connection; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// A key within the namespace, which may be read.
    probe: String,
}

impl Connections {
    pub(super) fn new(config: &Config, settings: &Settings, patience: Duration) -> Self {
        let mut endpoints = config.endpoints.clone();
        // Contract R4: a thousand clients must not all come to the same endpoint.
        endpoints.shuffle(&mut world::rng());
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
        Self {
            rotation: Rotation::new(endpoints.len(), settings, patience),
            endpoints,
            options,
            secure: config.tls.is_some(),
            patience,
            in_flight: Semaphore::new(IN_FLIGHT),
            connecting: tokio::sync::Mutex::new(()),
            probe: format!("{}/", settings.namespace),
        }
    }

    /// The connection in use, made if there is none, and its epoch.
    ///
    /// One caller makes it for all.
    pub(super) async fn client(&self) -> Result<(Arc<Client>, u64), EtcdError> {
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(found) = self.rotation.connected() {
            return Ok(found);
        }
        let Turn { index, epoch, pause_until } = self.rotation.turn();
        let endpoint = self.endpoints.get(index).cloned().unwrap_or_default();
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
                    self.rotation.give_up(epoch);
                }
                return Err(error);
            }
        };
        self.rotation.install(Arc::clone(&client), epoch);
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
        self.rotation.epochs()
    }

    /// Gives up a connection, unless that was done already.
    pub(super) fn give_up(&self, epoch: u64) {
        self.rotation.give_up(epoch);
    }

    /// Makes a call on the connection in use; if there is none, on the first endpoint that can be reached.
    ///
    /// It is made once only: whoever repeats it has to know that it may have been carried out.
    pub(super) async fn call<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        self.raw_call(call).await.map_err(|error| self.explain(operation, error))
    }

    /// [`call`](Self::call) with the client's own error, for callers who look at it.
    pub(super) async fn raw_call<T, F>(
        &self,
        call: impl FnOnce(Arc<Client>) -> F,
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
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut left = self.rotation.servers();
        loop {
            left -= 1;
            match self.client().await {
                Ok((client, epoch)) => return self.on_epoch(epoch, call(client)).await,
                Err(error) if left == 0 || !is_connection_failure(&error) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Runs something on the connection of this epoch, which is judged by it as by a call.
    pub(super) async fn on_epoch<T>(
        &self,
        epoch: u64,
        work: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, EtcdError> {
        let attempt = self.rotation.attempt(epoch);
        let outcome = work.await;
        attempt.ended(matches!(&outcome, Err(error) if is_connection_failure(error)));
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
}

async fn status(client: Arc<Client>) -> Result<StatusResponse, EtcdError> {
    client.maintenance_client().status().await
}

/// Versions in which a leader that was paused ends leases before their time.
pub(super) fn early_expiry(version: &str) -> Option<&'static str> {
    const PAUSED_LEADER: &str =
        "etcd before 3.4.31 and 3.5.13 may revoke leases early after its leader was paused";
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let mut part = || parts.next().unwrap_or_default();
    match (part(), part(), part()) {
        (3, minor, _) if minor < 4 => Some(PAUSED_LEADER),
        (3, 4, patch) if patch < 31 => Some(PAUSED_LEADER),
        (3, 5, patch) if patch < 13 => Some(PAUSED_LEADER),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_expire_early_are_known() {
        for version in ["3.3.0", "3.4.23", "3.4.30", "3.5.12"] {
            assert!(early_expiry(version).is_some(), "{version}");
        }
        for version in ["3.4.31", "3.5.13", "3.6.0", "3.7.1"] {
            assert!(early_expiry(version).is_none(), "{version}");
        }
    }
}
