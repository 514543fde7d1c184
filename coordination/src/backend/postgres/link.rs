//! Makes a connection to a server at one of its addresses, with TLS if the URL says so.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Connection, NoTls};

use super::client::Postgres;
use super::error::{failure, is_not_spoken};
use crate::backend::server::cause::{causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::backend::server::tls::{self, Tls};
use crate::env::keepalive::probe_if_silent;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// The first message on a connection with TLS, which asks the server to begin TLS. It consists of its length and of a code, which
/// stands where other first messages have the protocol's version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// After how long without traffic the operating system probes whether the server is still there.
const SILENCE: Duration = Duration::from_secs(30);

/// A TCP stream, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The client crate's future for a connection. Statements are sent and answers are read only while it is polled.
pub(super) type Running = Connection<Box<dyn Stream>, NoTlsStream>;

/// A connection that was opened.
pub(super) struct Opened {
    pub(super) client: tokio_postgres::Client,
    pub(super) running: Running,
    /// The address and port of our end of the connection; `None`: the system does not tell them.
    pub(super) local: Option<SocketAddr>,
}

impl Postgres {
    /// Opens a connection to the server at this address, with the client's name as its `application_name`. `settings` are sent in the
    /// start-up message. They are not sent as a `SET` statement, because behind a pooler a `SET` would be in force on a server
    /// connection that other clients use later.
    pub(super) async fn open(
        &self,
        user: &str,
        (host, address): (&Host, SocketAddr),
        credentials: &Credentials,
        settings: Option<&str>,
    ) -> Result<Opened, Failure> {
        let stream = TcpStream::connect(address).await.map_err(|error| unreachable_at(&error))?;
        // Turns off Nagle's algorithm, which would delay a small statement until the one before it is acknowledged.
        stream.set_nodelay(true).map_err(|error| unreachable_at(&error))?;
        // A system that has no such settings notices a silent connection later.
        let _ = probe_if_silent(&stream, SILENCE);
        let local = stream.local_addr().ok();
        let stream: Box<dyn Stream> = match &credentials.tls {
            None => Box::new(stream),
            Some(tls) => secured(stream, tls, host).await?,
        };
        let mut config = tokio_postgres::Config::new();
        config.user(user).dbname(&self.database).application_name(&self.name);
        if let Some(password) = &credentials.password {
            config.password(password.expose());
        }
        if let Some(settings) = settings {
            config.options(settings);
        }
        // The client crate must not begin TLS itself: if the URL says TLS, `stream` uses it already.
        config.ssl_mode(SslMode::Disable);
        let opened = config.connect_raw(stream, NoTls).await;
        let opened = opened.map(|(client, running)| Opened { client, running, local });
        opened.map_err(|error| match settings.is_some() && is_not_spoken(&error) {
            true => Failure::broken(not_set().with_source(failure("connect", &error).error)),
            false => no_password(failure("connect", &error), credentials),
        })
    }
}

/// Asks the server to begin TLS, and does the handshake. If the server has no TLS, this fails before the user or the password is
/// sent, so that they are never sent unencrypted.
async fn secured(
    mut stream: TcpStream,
    tls: &Tls,
    host: &Host,
) -> Result<Box<dyn Stream>, Failure> {
    stream.write_all(&SSL_REQUEST).await.map_err(|error| unreachable_at(&error))?;
    if stream.read_u8().await.map_err(|error| unreachable_at(&error))? != b'S' {
        let message = "the server has no TLS; `sslmode=disable` does without";
        return Err(Failure::broken(Error::new(ErrorKind::Tls, "connect", message)));
    }
    let secured = tls::secured(stream, tls, &host.name).await;
    Ok(Box::new(secured.map_err(|error| unreachable_at(&error))?))
}

fn unreachable_at(error: &io::Error) -> Failure {
    let beneath = causes(Some(error));
    let kind = connection_kind(&beneath);
    let is_hang_up = is_hang_up(&beneath);
    let error = Error::new(kind, "connect", error.to_string());
    Failure { is_hang_up, ..Failure::broken(error) }
}

/// The error for this case: transactions begin with settings under which our functions fail, and a pooler between the server and us
/// refuses or ignores the settings that we send (`database::SETTINGS`).
pub(super) fn not_set() -> Error {
    let message = "transactions of this role begin read-only, or with another isolation level than read committed, and what \
                   is between the server and us lets nobody set that for a connection: set it for the role";
    Error::new(ErrorKind::Unsupported, "connect", message)
}

/// If the server asks for a password and the URL has none, replaces the client crate's error by one that says where to put the
/// password. Returns other failures as they are.
fn no_password(failure: Failure, credentials: &Credentials) -> Failure {
    let is_missing = credentials.password.is_none() && failure.error.message() == NO_PASSWORD;
    if !is_missing {
        return failure;
    }
    let message = "the server asks for a password: it stands in the URL, or in a `password_file`";
    Failure::broken(Error::new(ErrorKind::Auth, "connect", message))
}

/// The text of the client crate's error if the server asks for a password and none was given.
const NO_PASSWORD: &str = "invalid configuration: password missing";
