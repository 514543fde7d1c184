//! Makes a connection to a server at one of its addresses, with TLS if the URL says so.

use std::net::SocketAddr;
use std::time::Duration;

use mysql_async::{Conn, OptsBuilder};

use super::error::failure;
use super::tls::options;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// If a connection was idle for this long, the operating system sends a probe on it (TCP keepalive), and with the next heartbeat the
/// client sends a statement, because not everything that may drop idle connections counts probes.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Opens a connection to the server at this address, and logs in.
pub(super) async fn open(
    user: &str,
    (host, address): (&Host, SocketAddr),
    credentials: &Credentials,
) -> Result<Conn, Failure> {
    let options = OptsBuilder::default()
        .ip_or_hostname(&host.name)
        .resolved_ips(Some([address.ip()]))
        .tcp_port(address.port())
        .user(Some(user))
        .pass(credentials.password.as_ref().map(|password| password.expose().to_owned()))
        .ssl_opts(credentials.tls.as_ref().map(options))
        .prefer_socket(false)
        // Some of our connections are idle for long, and a firewall on the way might drop them if nothing is sent.
        .tcp_keepalive(Some(SILENCE))
        // We prepare no statements, so the client crate need not cache any.
        .stmt_cache_size(0)
        .connect_attribute("program_name", "coordination");
    Conn::new(options).await.map_err(|error| advised(failure("connect", &error), credentials))
}

/// If access was denied on a connection without TLS, adds to the error the hint that TLS may be missing: MariaDB gives the same
/// error if the server or the account demands TLS.
fn advised(failure: Failure, credentials: &Credentials) -> Failure {
    if credentials.tls.is_some() || failure.error.kind() != ErrorKind::Auth {
        return failure;
    }
    let message = format!(
        "{}; it also says so where TLS is wanted: `ssl-mode=verify_identity`",
        failure.error.message()
    );
    let error = Error::new(ErrorKind::Auth, "connect", message);
    Failure { error: error.with_source(failure.error), ..failure }
}
