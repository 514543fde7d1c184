//! TLS by the client crate.

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::backend::server::tls::Tls;
use crate::url::Host;

/// Adds TLS to the client crate's options for a connection to this host.
pub(super) fn with_tls(options: ConnectOptions, tls: &Tls, host: &Host) -> ConnectOptions {
    // The certificate is checked against the host's name, even if the connection goes to one of its addresses.
    let name = tls.server_name().unwrap_or(&host.name);
    let mut with = TlsOptions::new().domain_name(name);
    with = match &tls.ca {
        Some(ca) => with.ca_certificate(Certificate::from_pem(ca)),
        None => with.with_enabled_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        with = with.identity(Identity::from_pem(cert, key.expose()));
    }
    options.with_tls(with)
}
