//! Making a connection: find the server, see that it is the right one, and subscribe.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture,
    TlsCertificates,
};
use tokio::time::timeout;

use super::config::{Config, Place};
use super::error::failure;
use super::server::Server;
use crate::backend::server::access::Tls;
use crate::backend::server::connections::Failure;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// How long a server may take to answer that should not.
const OTHERWISE: Duration = Duration::from_millis(500);

/// Resolves the host that is meant, whatever name its certificate has.
struct Resolver(String);

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((self.0.as_str(), port)).await?;
            Ok(Box::new(found) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

impl Config {
    /// How many places there are to try.
    pub(super) fn count(&self) -> usize {
        match &self.place {
            Place::Hosts(hosts) | Place::Sentinels(hosts, _) => hosts.len().max(1),
            Place::Socket(_) => 1,
        }
    }

    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// The places, for messages.
    pub(super) fn shown(&self) -> String {
        let join = |hosts: &[Host]| hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        match &self.place {
            Place::Hosts(hosts) => join(hosts),
            Place::Sentinels(hosts, name) => format!("{name} of {}", join(hosts)),
            Place::Socket(path) => path.clone(),
        }
    }

    /// A connection to the `nth` place, or to the master that the Sentinel there names, or to where the place says that
    /// the keys are: `host:port`, or `:port` of the same host.
    pub(super) async fn connect(
        &self,
        nth: usize,
        moved_to: Option<&str>,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_push_sender(pushes);
        let credentials = self.credentials(self.database);
        let host = match &self.place {
            Place::Socket(path) => {
                return self.open(ConnectionAddr::Unix(path.into()), credentials, config).await;
            }
            Place::Hosts(hosts) => host_at(hosts, nth)?.clone(),
            Place::Sentinels(hosts, name) => self.master(host_at(hosts, nth)?, name).await?,
        };
        let host = match moved_to {
            Some(to) => moved(&host, to).ok_or_else(no_place)?,
            None => host,
        };
        self.open_at(&host, credentials, config).await
    }

    /// Whether the first place would answer, had we spoken by TLS where we did not, or the other way: such
    /// servers keep silent, or hang up.
    pub(super) async fn speaks_otherwise(&self) -> bool {
        let (Place::Hosts(hosts) | Place::Sentinels(hosts, _)) = &self.place else { return false };
        let Ok(host) = host_at(hosts, 0) else { return false };
        let tls = Tls { ca: None, identity: None, server_name: None };
        let otherwise = Self { tls: (!self.is_secure()).then_some(tls), ..self.clone() };
        let opening = otherwise.open_at(host, anonymous(), AsyncConnectionConfig::new());
        // A refusal is an answer, and so is a certificate.
        let is_answer =
            |failure: Failure| !failure.is_broken || failure.error.kind() != ErrorKind::Unavailable;
        match timeout(OTHERWISE, opening).await {
            Ok(opened) => opened.err().is_none_or(is_answer),
            Err(_) => false,
        }
    }

    /// Which server the Sentinel says is the master.
    async fn master(&self, sentinel: &Host, name: &str) -> Result<Host, Failure> {
        let ask = async |credentials: RedisConnectionInfo| {
            let config = AsyncConnectionConfig::new();
            let mut connection = self.open_at(sentinel, credentials, config).await?;
            let mut command = Cmd::new();
            command.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
            let answer = command.query_async::<Option<(String, u16)>>(&mut connection).await;
            answer.map_err(|error| failure("connect", &error))
        };
        let answer = match ask(anonymous()).await {
            Err(failure) if failure.error.kind() == ErrorKind::Auth => {
                ask(self.credentials(0)).await
            }
            answer => answer,
        };
        let (name, port) = answer?.ok_or_else(|| {
            let message = "the Sentinel does not know a master of this name";
            Failure::broken(Error::new(ErrorKind::Config, "connect", message))
        })?;
        Ok(Host { name, port: Some(port) })
    }

    async fn open_at(
        &self,
        host: &Host,
        credentials: RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Failure> {
        let port = host.port.unwrap_or_default();
        let address = match &self.tls {
            None => ConnectionAddr::Tcp(host.name.clone(), port),
            Some(tls) => ConnectionAddr::TcpTls {
                host: tls.server_name.clone().unwrap_or_else(|| host.name.clone()),
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let config = config.set_dns_resolver(Resolver(host.name.clone()));
        self.open(address, credentials, config).await
    }

    fn credentials(&self, database: i64) -> RedisConnectionInfo {
        let mut info = anonymous().set_db(database);
        if let Some(user) = &self.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password.expose());
        }
        info
    }

    async fn open(
        &self,
        address: ConnectionAddr,
        credentials: RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Failure> {
        let failed = |error: RedisError| failure("connect", &error);
        let info = address.into_connection_info().map_err(failed)?;
        // A request waits for no other: each is an answer that somebody waits for.
        let info: ConnectionInfo = info
            .set_redis_settings(credentials)
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = match &self.tls {
            None => Client::open(info),
            Some(tls) => {
                let client_tls = tls.identity.as_ref().map(|(cert, key)| ClientTlsConfig {
                    client_cert: cert.clone(),
                    client_key: key.expose().as_bytes().to_vec(),
                });
                Client::build_with_tls(
                    info,
                    TlsCertificates { client_tls, root_cert: tls.ca.clone() },
                )
            }
        };
        // Our own limits hold: those of calls, and that of making a connection.
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        let client = client.map_err(failed)?;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
    }
}

/// Who is there? Fails with a replica.
pub(super) async fn probe(connection: &MultiplexedConnection) -> Result<Server, Failure> {
    let (mut asking, mut asking_too) = (connection.clone(), connection.clone());
    let (info, mut fsync) = (redis::cmd("INFO"), redis::cmd("CONFIG"));
    fsync.arg("GET").arg("appendfsync");
    // The second may be forbidden to us.
    let (info, fsync) = tokio::join!(
        info.query_async::<String>(&mut asking),
        fsync.query_async::<HashMap<String, String>>(&mut asking_too),
    );
    let info = info.map_err(|error| failure("connect", &error))?;
    let fsync = fsync.ok().and_then(|answer| answer.into_values().next());
    Server::read(&info, fsync.as_deref()).map_err(Failure::broken)
}

fn anonymous() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name()
}

fn host_at(hosts: &[Host], nth: usize) -> Result<&Host, Failure> {
    hosts.get(nth % hosts.len().max(1)).ok_or_else(no_place)
}

fn no_place() -> Failure {
    Failure::broken(Error::new(ErrorKind::Unavailable, "connect", "there is no such server"))
}

/// The host that a redirection names.
pub(super) fn moved(before: &Host, to: &str) -> Option<Host> {
    let (name, port) = to.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let name = if matches!(name, "" | "?") { before.name.as_str() } else { name };
    Some(Host { name: name.to_owned(), port: Some(port) })
}
