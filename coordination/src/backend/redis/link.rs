//! Makes a connection to a server, and asks the server what it is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::AsyncPushSender;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError, Value};
use tokio::time::timeout;

use super::config::{Config, Place};
use super::error::failure;
use super::raw_connection::RawConnection;
use super::server::Server;
use super::topology::{Topology, nodes_in};
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::tls::Tls;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// How long [`speaks_otherwise`](Config::speaks_otherwise) waits for an answer to its trial connection.
const OTHERWISE: Duration = Duration::from_secs(2);

impl Config {
    /// How many places are tried one after the other: the hosts of the URL, or one if the URL has a socket or Sentinels.
    pub(super) fn count(&self) -> usize {
        match &self.place {
            Place::Hosts(hosts) => hosts.len().max(1),
            // All Sentinels are asked at the same time, so they count as one place.
            Place::Sentinels(..) | Place::Socket(_) => 1,
        }
    }

    /// The servers of the URL as text, for error messages.
    pub(super) fn shown(&self) -> String {
        let join = |hosts: &[Host]| hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        match &self.place {
            Place::Hosts(hosts) => join(hosts),
            Place::Sentinels(hosts, name) => format!("{name} of {}", join(hosts)),
            Place::Socket(path) => path.clone(),
        }
    }

    /// The `nth` host of the URL; `None`: the URL has Sentinels or a socket, so it does not name the server's host.
    pub(super) fn named(&self, nth: usize) -> Option<&Host> {
        match &self.place {
            Place::Hosts(hosts) => hosts.get(nth),
            Place::Sentinels(..) | Place::Socket(_) => None,
        }
    }

    /// The `nth` host of the URL. For a socket, a host that has the socket's path as its name, so that messages show the path.
    pub(super) fn host(&self, nth: usize) -> Result<Host, Failure> {
        match &self.place {
            Place::Hosts(hosts) | Place::Sentinels(hosts, _) => host_at(hosts, nth).cloned(),
            Place::Socket(path) => Ok(Host { name: path.clone(), port: None }),
        }
    }

    /// Connects and logs in. If the URL has a socket, connects to the socket; otherwise to `host`, at `address` if that is given.
    /// The client crate calls `pushes` for messages on channels and when the connection ends.
    pub(super) async fn connect(
        &self,
        (host, address): (&Host, Option<SocketAddr>),
        credentials: &Credentials,
        pushes: impl AsyncPushSender,
    ) -> Result<RawConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_push_sender(pushes);
        let login = self.login(credentials, self.database);
        match &self.place {
            Place::Socket(path) => {
                let opened = RawConnection::by_socket(path.as_ref(), &login, unlimited(config));
                opened.await.map_err(|error| failure("connect", &error))
            }
            _ => open_at((host, address), login, credentials.tls.as_ref(), config).await,
        }
    }

    /// Whether the first server of the URL answers if it is tried with TLS although the URL has none, or without TLS although the
    /// URL has it. This is needed for a helpful error: a server that expects the opposite of what we use gives no answer or closes
    /// the connection, and does not say why.
    pub(super) async fn speaks_otherwise(&self) -> bool {
        let (Place::Hosts(hosts) | Place::Sentinels(hosts, _)) = &self.place else { return false };
        let Ok(host) = host_at(hosts, 0) else { return false };
        let otherwise = if self.access.is_secure() { None } else { Tls::trial() };
        if otherwise.is_none() && !self.access.is_secure() {
            // This build has no TLS to try.
            return false;
        }
        let config = AsyncConnectionConfig::new();
        let opening = open_at((host, None), anonymous(), otherwise.as_ref(), config);
        // It counts as an answer if the server refuses the login, or if it shows a certificate that cannot be verified: both show
        // that the server understands this kind of connection.
        let is_answer =
            |failure: Failure| !failure.is_broken || failure.error.kind() != ErrorKind::Unavailable;
        match timeout(OTHERWISE, opening).await {
            Ok(opened) => opened.err().is_none_or(is_answer),
            Err(_) => false,
        }
    }

    /// The settings with which the client crate logs in: user, password and database.
    pub(super) fn login(&self, credentials: &Credentials, database: i64) -> RedisConnectionInfo {
        let mut info = anonymous().set_db(database);
        if let Some(user) = &self.user {
            info = info.set_username(user);
        }
        if let Some(password) = &credentials.password {
            info = info.set_password(password.expose());
        }
        info
    }
}

/// Connects to `host` and logs in, with TLS if `tls` is `Some`. If `address` is given, connects to that address only; otherwise to
/// one that is found for the host's name.
pub(super) async fn open_at(
    (host, address): (&Host, Option<SocketAddr>),
    login: RedisConnectionInfo,
    tls: Option<&Tls>,
    config: AsyncConnectionConfig,
) -> Result<RawConnection, Failure> {
    let opened = RawConnection::by_tcp((host, address), &login, tls, unlimited(config)).await;
    opened.map_err(|error| failure("connect", &error))
}

/// Turns off the client crate's time limits: this library has its own limits for calls and for making a connection.
fn unlimited(config: AsyncConnectionConfig) -> AsyncConnectionConfig {
    config.set_connection_timeout(None).set_response_timeout(None)
}

/// Asks the server what it is, and about its replicas and its cluster. Fails if the server is a replica, unless it is in a cluster:
/// there, a replica redirects calls to the node that has our keys.
///
/// The third value that is returned says whether the server's settings make it sync its log for each write; false if the user lacks
/// the right to read the settings.
pub(super) async fn probe(connection: &RawConnection) -> Result<(Server, Topology, bool), Failure> {
    let (info, mut asking) = (redis::cmd("INFO"), connection.clone());
    // `syncs` and `settings` call `CONFIG GET`. They may fail because the user lacks the right to that; connecting goes on without
    // the settings then.
    let (info, syncs, replicas) = tokio::join!(
        info.query_async::<String>(&mut asking),
        syncs(connection),
        settings(connection, "min-replicas-*"),
    );
    let info = info.map_err(|error| failure("connect", &error))?;
    let topology = Topology::read(&info, replicas.ok().as_ref());
    let server = Server::read(&info, syncs).map_err(Failure::broken)?;
    Ok((server, topology, syncs == Some(true)))
}

/// Whether the server's settings make it sync each write to the disk before it answers, provided that it has a log (`appendonly`,
/// which is not asked here). `None`: the settings cannot be read, usually because the user lacks the right.
pub(super) async fn syncs(connection: &RawConnection) -> Option<bool> {
    let settings = settings(connection, "*appendfsync*").await.ok()?;
    let has = |name: &str, value: &str| settings.get(name).is_some_and(|is| is == value);
    // With `no-appendfsync-on-rewrite yes`, the server does not sync the log while a child process of it writes to the disk. Such a
    // child may start at any time, so writes may be lost then.
    Some(has("appendfsync", "always") && !has("no-appendfsync-on-rewrite", "yes"))
}

async fn settings(
    connection: &RawConnection,
    like: &str,
) -> Result<HashMap<String, String>, RedisError> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg(like);
    command.query_async(&mut connection.clone()).await
}

/// The nodes of the cluster, as the node at `host` lists them; empty if the request fails or the node lists none.
pub(super) async fn nodes(connection: &RawConnection, host: &Host) -> Vec<Host> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer = command.query_async::<Value>(&mut connection.clone()).await;
    answer.map(|answer| nodes_in(&answer, host)).unwrap_or_default()
}

pub(super) fn anonymous() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name()
}

fn host_at(hosts: &[Host], nth: usize) -> Result<&Host, Failure> {
    hosts.get(nth % hosts.len().max(1)).ok_or_else(no_place)
}

pub(super) fn no_place() -> Failure {
    Failure::broken(Error::new(ErrorKind::Unavailable, "connect", "there is no such server"))
}
