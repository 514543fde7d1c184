//! Makes a connection to a server at one of its addresses, with TLS if the URL says so.

use std::net::SocketAddr;
use std::time::Duration;

use mysql_async::{ClientIdentity, Conn, OptsBuilder, SslOpts};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::{Credentials, Tls};
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
        .ssl_opts(credentials.tls.as_ref().map(tls_options))
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

fn tls_options(tls: &Tls) -> SslOpts {
    choose_provider();
    // Trusts the certificates in `ca`, or those of the system, but not the ones that the client crate has built in.
    let roots = trusted(tls).into_iter().map(Into::into).collect();
    let options = SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(true);
    let options = match &tls.server_name {
        Some(name) => options.with_danger_tls_hostname_override(Some(name.clone())),
        None => options,
    };
    // The certificate and the key are not checked here: that was done when their files were read.
    options.with_client_identity(tls.identity.as_ref().map(|(cert, key)| {
        ClientIdentity::new(cert.clone().into(), key.expose().as_bytes().to_vec().into())
    }))
}

/// The certificates to trust. Certificates that the TLS library cannot use are left out, because the client crate fails if there is
/// one among them.
fn trusted(tls: &Tls) -> Vec<Vec<u8>> {
    let certificates: Vec<_> = match &tls.ca {
        Some(ca) => CertificateDer::pem_slice_iter(ca).flatten().collect(),
        None => rustls_native_certs::load_native_certs().certs,
    };
    let usable = |certificate: &CertificateDer<'_>| {
        RootCertStore::empty().add(certificate.clone().into_owned()).is_ok()
    };
    let usable = certificates.into_iter().filter(usable);
    usable.map(|certificate| certificate.to_vec()).collect()
}

/// Sets the process's default provider of cryptography for TLS, if none is set. The client crate uses that default, and panics if
/// no default is set and several providers are compiled in.
fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // This fails if another thread has set a provider at the same moment. That provider will do as well, so the result is
        // ignored.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}
