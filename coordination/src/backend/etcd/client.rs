//! Connections: a client of the crate's for each endpoint.
//!
//! The crate's own way spreads calls over all endpoints and does not move a failed one to the next, and a connection
//! that went silent hangs it: see [`connections`](crate::backend::server::connections).

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error as EtcdError, GetOptions, Identity, StatusResponse,
    TlsOptions,
};
use rand::seq::SliceRandom;

use super::config::Config;
use super::error::failure;
use crate::backend::server::access::Tls;
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::rotation::Turn;
use crate::config::Settings;
use crate::error::Result;
use crate::world;

/// How large an answer may be. The client by itself takes 4 MiB, and a thousand full entries are more.
pub(super) const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The endpoints, and the connection in use.
pub(super) type Connections = connections::Connections<Endpoints>;

/// How to connect to an endpoint.
pub(super) struct Endpoints {
    endpoints: Vec<String>,
    options: ConnectOptions,
    secure: bool,
    /// A key within the namespace, which may be read.
    probe: String,
}

impl Endpoints {
    pub(super) fn new(config: &Config, settings: &Settings) -> Self {
        let mut endpoints = config.endpoints.clone();
        // A thousand clients must not all come to the same endpoint (`R4`).
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
        let probe = format!("{}/", settings.namespace);
        Self { endpoints, options, secure: config.tls.is_some(), probe }
    }
}

impl Link for Endpoints {
    type Connection = Arc<Client>;
    type Failed = EtcdError;

    const IN_FLIGHT: usize = 64;
    const SECURE: &'static str = "etcds";
    const WANTS_TLS: &'static str = "the server wants TLS: use etcds://";

    fn servers(&self) -> usize {
        self.endpoints.len()
    }

    fn shown(&self) -> String {
        self.endpoints.join(",")
    }

    fn is_secure(&self) -> bool {
        self.secure
    }

    /// Less than a call may take: whoever makes one tries the next endpoint in the time that is left.
    fn longest(patience: Duration) -> Duration {
        patience * 4 / 5
    }

    /// The client itself connects with the first call only, and once more with every call that finds no connection: a
    /// hundred waiters would be a hundred tries.
    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
    ) -> Result<Self::Connection, Failure> {
        let Self { endpoints, options, probe, .. } = &connections.link;
        let endpoint = endpoints.get(turn.index).cloned().unwrap_or_default();
        let failed = |error| failure("connect", error);
        // With a user this asks for a token.
        let client = Client::connect([endpoint], Some(options.clone())).await.map_err(failed)?;
        let options = GetOptions::new().with_serializable().with_count_only();
        match client.kv_client().get(probe.as_str(), Some(options)).await.map_err(failed) {
            Err(failure) if failure.is_broken => Err(failure),
            // A refusal is an answer too; who cares for it makes a call of his own.
            _ => Ok(Arc::new(client)),
        }
    }

    fn explain(&self, operation: &'static str, failed: EtcdError) -> Failure {
        failure(operation, failed)
    }
}

/// Who is there?
pub(super) async fn status(client: Arc<Client>) -> Result<StatusResponse, EtcdError> {
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
