//! Connections to etcd. Each connection that [`connections`](crate::backend::server::connections) makes is one client of the
//! crate `etcd_client`, with one endpoint.
//!
//! A client with several endpoints would spread calls over all of them, would not move a failed call to the next one, and would
//! hang on a connection whose server has stopped answering.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error as EtcdError, GetOptions, StatusResponse};
use rand::seq::SliceRandom;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::config::Config;
use super::error::{failure, is_authentication_off, is_token_stale, is_user_missing};
use super::origin::Origin;
use super::tls::with_tls;
use super::txn::revision_in;
use crate::backend::server::connections::{self, Failure, Link};
use crate::backend::server::credentials::{Access, Credentials};
use crate::backend::server::patience;
use crate::backend::server::places::Place;
use crate::backend::server::rotation::Turn;
use crate::backend::server::tls::Tls;
use crate::config::Settings;
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// How large an answer may be, in bytes. The client's own limit is 4 MiB, and a thousand entries of full size are larger.
pub(super) const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Making a connection with a user may take the lease divided by this number. That is long, because the server hashes the
/// password, which takes 50 ms of a processor or more, and does not stop when the client has given up. Many clients may connect
/// at the same time, as after a restart. If each of them gave up as early as it gives up a call, all of them would come again
/// while the server is still busy with their first tries.
const AUTHENTICATION: u32 = 3;

/// The message of the error if a call finds that authentication was turned on or off since its connection was made. The
/// connection then counts as broken, and another one is made.
const TURNED: &str = "authentication was turned on or off";

/// The endpoints, and the connection in use.
pub(super) type Connections = connections::Connections<Endpoints>;

/// A connection, and the state of our authentication on it.
pub(super) struct Connected {
    client: Client,
    /// How many authentication tokens the server has given us on this connection, which is also the number of the token in use.
    /// If a call is refused because of an old token, this number shows whether another call has got a new token since. A token
    /// costs the server time (see [`AUTHENTICATION`]), so one new token has to do for all refused calls.
    tokens: AtomicU64,
    refreshing: Mutex<()>,
    /// How long a request for a new token may take. After that time the request fails.
    longest: Duration,
    /// Whether the connection was made without the URL's user, because authentication was off.
    is_anonymous: bool,
    /// Whether the server, when this connection was made, answered with an older revision than this process had seen before. If it
    /// did, the server lags behind the other servers, or the store was restored from a snapshot. `is_restored` finds out which of
    /// the two it is, and then clears this flag.
    is_behind: AtomicBool,
}

/// How to connect to an endpoint.
pub(super) struct Endpoints {
    hosts: Vec<Host>,
    /// The options of all connections. Each connection adds the user and the certificates: see [`client`](Self::client).
    options: ConnectOptions,
    user: Option<String>,
    access: Arc<Access>,
    /// Whether the last connection was made without the URL's user, because authentication was off.
    is_off: AtomicBool,
    /// A key within the namespace, which the user may read. It is read when a connection is made, to find out whether the server
    /// answers.
    probe: String,
    /// How long making another connection may take.
    longest: Duration,
    /// The newest revision of the store that this process has seen. A lower revision in a later answer may mean that the store
    /// was restored from a snapshot.
    newest: AtomicI64,
}

impl Endpoints {
    pub(super) fn new(config: &Config, settings: &Settings) -> Self {
        let mut hosts = config.hosts.clone();
        // The endpoints are tried in random order, so that a thousand clients do not all connect to the first one (`R4`).
        hosts.shuffle(&mut env::rng());
        // If the URL has no user, the time limit for connecting is shorter than the limit for a call: so if this endpoint does not
        // answer, the rest of the call's time is left for the next endpoint.
        let mut longest = patience(settings) * 4 / 5;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            // With this, a server without a leader answers with an error. Otherwise it would not answer at all.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if config.user.is_some() {
            options = options.with_connect_timeout(longest);
            longest = longest.max(settings.ttl / AUTHENTICATION);
        }
        let probe = format!("{}/", settings.namespace);
        Self {
            hosts,
            options,
            user: config.user.clone(),
            access: Arc::clone(&config.access),
            is_off: AtomicBool::new(false),
            probe,
            longest,
            newest: AtomicI64::new(0),
        }
    }

    /// The URL of an endpoint: `http://host:port` or `https://host:port`.
    fn endpoint(&self, host: impl Display) -> String {
        let scheme = if self.access.is_secure() { "https" } else { "http" };
        format!("{scheme}://{host}")
    }

    /// Makes a client for this host and address. If the URL has a user, the client authenticates as that user, unless
    /// authentication `is_off` at the server.
    async fn client(
        &self,
        place: Place,
        credentials: &Credentials,
        is_off: bool,
    ) -> Result<Client, EtcdError> {
        let missing = || EtcdError::InvalidArgs("no such host".to_owned());
        let host = self.hosts.get(place.host).ok_or_else(missing)?;
        let mut options = self.options.clone();
        if let (Some(user), Some(password), false) = (&self.user, &credentials.password, is_off) {
            options = options.with_user(user, password.expose());
        }
        if let Some(tls) = &credentials.tls {
            options = with_tls(options, tls, host);
        }
        let named = self.endpoint(host);
        match place.address {
            Some(address) => {
                let origin = Origin(named.parse()?);
                let endpoint = self.endpoint(address);
                Client::connect_with_balanced_channel([endpoint], Some(options), origin).await
            }
            None => Client::connect([named], Some(options)).await,
        }
    }

    /// Whether the server knows us as somebody who may lack rights: as a user, or by the name in our certificate.
    pub(super) fn may_be_refused(&self) -> bool {
        let credentials = self.access.used();
        self.user.is_some() || credentials.tls.as_ref().is_some_and(Tls::has_identity)
    }

    /// Notes a revision with which the store has answered.
    pub(super) fn saw(&self, revision: i64) {
        self.newest.fetch_max(revision, Ordering::Relaxed);
    }

    /// Notes whether authentication is off, and logs it if that has changed.
    fn note_off(&self, is_off: bool) {
        if self.is_off.swap(is_off, Ordering::Relaxed) != is_off {
            let turned = if is_off { "off" } else { "on again" };
            tracing::warn!(backend = "etcd", "authentication was turned {turned} at the server");
        }
    }
}

impl Connected {
    fn new(
        client: Client,
        is_anonymous: bool,
        endpoints: &Endpoints,
        revision: Option<i64>,
    ) -> Self {
        let newest = endpoints.newest.load(Ordering::Relaxed);
        Self {
            client,
            tokens: AtomicU64::new(1),
            refreshing: Mutex::default(),
            longest: endpoints.longest,
            is_anonymous,
            is_behind: AtomicBool::new(revision.is_some_and(|revision| revision < newest)),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The number of the token with which calls are made now.
    pub(super) fn token(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Makes a call. If rights have changed since the call's token was given, the server may refuse the token, and the call has
    /// done nothing: in that case this function asks for a new token and makes the call once more. A token that has merely expired
    /// is replaced by the client crate.
    pub(super) async fn call<T, F>(
        self: &Arc<Self>,
        call: impl Fn(Client) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let token = self.token();
        match call(self.client.clone()).await {
            Err(error) if is_token_stale(&error) => {
                self.authenticate(token).await?;
                call(self.client.clone()).await
            }
            outcome => outcome,
        }
    }

    /// Whether the store was restored from a snapshot that is older than what this process has seen of the store. A request is
    /// sent only if the server answered with an older revision when the connection was made. The server may merely lag behind the
    /// other servers. So the request is a read that a majority of servers has to confirm: the revision of a majority becomes
    /// lower only by a restore.
    pub(super) async fn is_restored(
        self: &Arc<Self>,
        endpoints: &Endpoints,
    ) -> Result<bool, EtcdError> {
        if !self.is_behind.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let look = |client: Client| async move {
            let count = GetOptions::new().with_count_only();
            client.kv_client().get(endpoints.probe.as_str(), Some(count)).await
        };
        // `newest` is read before the request is sent. Otherwise another call could raise `newest` while this request is under
        // way. Then the answer's revision would be lower than `newest`, although nothing was restored.
        let newest = endpoints.newest.load(Ordering::Relaxed);
        let revision = revision_in(self.call(look).await?.header());
        self.is_behind.store(false, Ordering::Relaxed);
        if revision < newest {
            // From now on the restored store's revision counts as the newest one that was seen. Otherwise the server would seem
            // to be behind on every later connection.
            endpoints.newest.store(revision, Ordering::Relaxed);
        }
        Ok(revision < newest)
    }

    /// Asks the server for a new token, unless the token with the number `refused` was replaced already. A task makes the request,
    /// and goes on if the caller gives up, so that the next caller finds the new token. On a connection that was made without the
    /// user there is no token to ask for: on such a connection this function fails with [`TURNED`], and the caller's connection is
    /// replaced by another one.
    pub(super) async fn authenticate(self: &Arc<Self>, refused: u64) -> Result<(), EtcdError> {
        if self.is_anonymous {
            return Err(io::Error::other(TURNED).into());
        }
        let connected = Arc::clone(self);
        let asking = tokio::spawn(async move {
            let _refreshing = connected.refreshing.lock().await;
            if connected.token() == refused {
                let asked = timeout(connected.longest, connected.client.refresh_token()).await;
                asked.map_err(io::Error::from)??;
                connected.tokens.fetch_add(1, Ordering::Release);
            }
            Ok(())
        });
        asking.await.map_err(io::Error::other)?
    }
}

impl Link for Endpoints {
    type Connection = Arc<Connected>;
    type Failed = EtcdError;

    const IN_FLIGHT: usize = 64;
    const SECURE: &'static str = "etcds://";
    const WANTS_TLS: &'static str = "the server wants TLS: use etcds://";

    fn hosts(&self) -> usize {
        self.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.hosts.get(nth)
    }

    fn shown(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|host| self.endpoint(host)).collect();
        hosts.join(",")
    }

    fn access(&self) -> &Access {
        &self.access
    }

    fn longest(&self, _patience: Duration, _is_urgent: bool) -> Duration {
        self.longest
    }

    /// Connects, and reads once to make sure that there is a connection. By itself, the crate's client would connect only with
    /// the first call, and try again with each call that finds no connection: a hundred waiters would make a hundred tries.
    async fn connect(
        connections: &Arc<Connections>,
        turn: Turn,
        credentials: &Credentials,
    ) -> Result<Self::Connection, Failure> {
        let Self { user, probe, .. } = &connections.link;
        let connect = |is_off| connections.link.client(turn.place, credentials, is_off);
        // If there is a user, connecting asks for a token, which fails if the server has no authentication.
        let (client, is_off) = match connect(false).await {
            // The server says that it has no authentication. If there was a connection before, authentication was turned off
            // since, and the connection is made without the user. If there was none, the URL has a user although the server has
            // no authentication: then the caller gets this error.
            Err(error)
                if user.is_some()
                    && is_authentication_off(&error)
                    && connections.has_connected() =>
            {
                (connect(true).await, true)
            }
            connected => (connected, false),
        };
        let client = client.map_err(|error| failure("connect", error))?;
        let options = GetOptions::new().with_serializable().with_count_only();
        let revision = match client.kv_client().get(probe.as_str(), Some(options)).await {
            Ok(answer) => Some(revision_in(answer.header())),
            Err(error) => match connections.link.explain("connect", error) {
                failure if failure.is_broken => return Err(failure),
                // A refusal proves, too, that the server answers. Calls that need the right will be refused in the same way, and
                // report it.
                _ => None,
            },
        };
        connections.link.note_off(is_off);
        Ok(Arc::new(Connected::new(client, is_off, &connections.link, revision)))
    }

    fn explain(&self, operation: &'static str, failed: EtcdError) -> Failure {
        let is_turned = is_user_missing(&failed) || is_authentication_off(&failed);
        let failure = failure(operation, failed);
        if self.user.is_none() || !is_turned {
            return failure;
        }
        let error = Error::new(ErrorKind::Unavailable, operation, TURNED);
        Failure::broken(error.with_source(failure.error))
    }
}

/// Asks the server for its status, which has its version.
pub(super) async fn status(connected: Arc<Connected>) -> Result<StatusResponse, EtcdError> {
    connected.client().maintenance_client().status().await
}

/// The warning for versions in which a leader that was paused ends leases before their time; `None`: this is no such version.
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
