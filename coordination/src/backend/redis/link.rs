//! Making a connection: find the server, see that it is the right one, and subscribe.

use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture,
    TlsCertificates, Value,
};

use super::config::{Config, Place};
use super::error::failure;
use super::server::Server;
use crate::backend::server::connections::Failure;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// How long a server may take to answer that should not.
const OTHERWISE: Duration = Duration::from_millis(500);

/// How connections are made.
pub(super) struct Places {
    config: Config,
}

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

impl Places {
    pub(super) fn new(config: Config) -> Self {
        Self { config }
    }

    /// How many places there are to try.
    pub(super) fn count(&self) -> usize {
        match &self.config.place {
            Place::Hosts(hosts) | Place::Sentinels(hosts, _) => hosts.len().max(1),
            Place::Socket(_) => 1,
        }
    }

    pub(super) fn is_secure(&self) -> bool {
        self.config.tls.is_some()
    }

    /// The places, for messages.
    pub(super) fn shown(&self) -> String {
        let join = |hosts: &[Host]| hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        match &self.config.place {
            Place::Hosts(hosts) => join(hosts),
            Place::Sentinels(hosts, name) => format!("{name} of {}", join(hosts)),
            Place::Socket(path) => path.clone(),
        }
    }

    /// A connection to the `nth` place, or to the master that the Sentinel there names.
    pub(super) async fn connect(
        &self,
        nth: usize,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_push_sender(pushes);
        match &self.config.place {
            Place::Socket(path) => {
                let address = ConnectionAddr::Unix(path.into());
                self.open(address, self.credentials(self.config.database), config).await
            }
            Place::Hosts(hosts) => self.connect_to(host_at(hosts, nth)?, config).await,
            Place::Sentinels(hosts, name) => {
                let master = self.master(host_at(hosts, nth)?, name).await?;
                self.connect_to(&master, config).await
            }
        }
    }

    /// Whether the first place would answer, had we spoken by TLS where we did not, or the other way: such
    /// servers keep silent, or hang up.
    pub(super) async fn speaks_otherwise(&self) -> bool {
        let (Place::Hosts(hosts) | Place::Sentinels(hosts, _)) = &self.config.place else {
            return false;
        };
        let Ok(Host { name, port }) = host_at(hosts, 0).cloned() else { return false };
        let (host, port) = (name, port.unwrap_or_default());
        let address = match self.is_secure() {
            true => ConnectionAddr::Tcp(host, port),
            false => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let Ok(info) = address.into_connection_info() else { return false };
        let Ok(client) = Client::open(info.set_redis_settings(anonymous())) else { return false };
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(OTHERWISE));
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(_) => true,
            // A refusal is an answer, and so is a certificate.
            Err(error) => {
                !error.is_io_error() || failure("connect", &error).error.kind() == ErrorKind::Tls
            }
        }
    }

    /// A connection to where a cluster says that the keys are: `host:port`, or `:port` of the same host.
    pub(super) async fn follow(
        &self,
        nth: usize,
        moved_to: &str,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_push_sender(pushes);
        let Place::Hosts(hosts) = &self.config.place else { return Err(no_place()) };
        let before = host_at(hosts, nth)?;
        self.connect_to(&moved(before, moved_to).ok_or_else(no_place)?, config).await
    }

    async fn connect_to(
        &self,
        host: &Host,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = config.set_dns_resolver(Resolver(host.name.clone()));
        self.open(self.address(host), self.credentials(self.config.database), config).await
    }

    /// Which server the Sentinel says is the master.
    async fn master(&self, sentinel: &Host, name: &str) -> Result<Host, Failure> {
        let ask = async |credentials: RedisConnectionInfo| {
            let config =
                AsyncConnectionConfig::new().set_dns_resolver(Resolver(sentinel.name.clone()));
            let mut connection = self.open(self.address(sentinel), credentials, config).await?;
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

    fn address(&self, host: &Host) -> ConnectionAddr {
        let port = host.port.unwrap_or_default();
        match &self.config.tls {
            None => ConnectionAddr::Tcp(host.name.clone(), port),
            Some(tls) => ConnectionAddr::TcpTls {
                host: tls.server_name.clone().unwrap_or_else(|| host.name.clone()),
                port,
                insecure: false,
                tls_params: None,
            },
        }
    }

    fn credentials(&self, database: i64) -> RedisConnectionInfo {
        let mut info = anonymous().set_db(database);
        if let Some(user) = &self.config.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.config.password {
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
        let client = match &self.config.tls {
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
    let ask = async |words: &[&str]| {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async::<Value>(&mut connection.clone()).await
    };
    // The second may be forbidden to us.
    let (info, fsync) = tokio::join!(ask(&["INFO"]), ask(&["CONFIG", "GET", "appendfsync"]));
    let info = text(info.map_err(|error| failure("connect", &error))?);
    let fsync = fsync.ok().and_then(|answer| match answer {
        Value::Map(pairs) => pairs.into_iter().next().map(|(_, value)| text(value)),
        _ => None,
    });
    Server::read(&info, fsync.as_deref()).map_err(Failure::broken)
}

fn text(value: Value) -> String {
    match value {
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
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
