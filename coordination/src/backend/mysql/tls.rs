//! TLS by the client crate.

use mysql_async::{ClientIdentity, SslOpts};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::backend::server::tls::{Tls, set_default_provider};

/// The client crate's options for a connection with TLS.
pub(super) fn options(tls: &Tls) -> SslOpts {
    set_default_provider();
    // Trusts the certificates in `ca`, or those of the system, but not the ones that the client crate has built in.
    let roots = trusted(tls).into_iter().map(Into::into).collect();
    let options = SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(true);
    let options = match tls.server_name() {
        Some(name) => options.with_danger_tls_hostname_override(Some(name.to_owned())),
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
    let usable = |certificate: &CertificateDer<'_>| {
        RootCertStore::empty().add(certificate.clone().into_owned()).is_ok()
    };
    let usable = tls.authorities().into_iter().filter(usable);
    usable.map(|certificate| certificate.to_vec()).collect()
}
