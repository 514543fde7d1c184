//! TLS: whom the client trusts, as whom it presents itself, and with which provider of cryptography.
//!
//! A build without the features `tls` and `tls-ring` has `no_tls.rs` in the place of this file. There [`Tls`] has no values, so that
//! code which gets one compiles in both builds, and is never reached without TLS.
//!
//! The provider is named in each configuration that is made here. The default of the process is not used, because it is not ours: a
//! program may set another one, and with two providers compiled in and none set rustls panics. Where a client crate makes its own
//! configuration, it decides: see [`set_default_provider`].

use std::io;
use std::sync::Arc;

#[cfg(not(feature = "tls-ring"))]
use rustls::crypto::aws_lc_rs::default_provider;
#[cfg(feature = "tls-ring")]
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::source::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Secret;

/// What a build lacks in which TLS is asked for; `None`: it has TLS.
pub(super) const LACKING: Option<&str> = None;

/// The contents of the PEM files that the URL names, and the name that the server's certificate must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tls {
    /// The certificates of the authorities to trust; `None`: those that the system trusts.
    pub(crate) ca: Option<Vec<u8>>,
    /// Our own certificate with its chain, and its private key.
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
    pub(crate) server_name: Option<String>,
}

/// The files of a [`Tls`].
#[derive(Debug)]
pub(super) struct TlsSources {
    ca: Option<Source>,
    identity: Option<(Source, Source)>,
    server_name: Option<String>,
}

impl Tls {
    /// Trusts nobody, to find out whether a server speaks TLS: if it does, the handshake fails because of its certificate.
    /// `None`: this build has no TLS.
    pub(crate) fn trial() -> Option<Self> {
        Some(Self { ca: Some(Vec::new()), identity: None, server_name: None })
    }

    /// The name that the server's certificate must have, if it is not that of the host.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Whether we have a certificate of our own, by which the server knows us.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// The certificates to trust. Those that the TLS library cannot use are left out.
    pub(crate) fn trusted(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities());
        roots
    }

    /// The certificates of the authorities: those of `ca`, or those that the system trusts.
    pub(crate) fn authorities(&self) -> Vec<CertificateDer<'static>> {
        match &self.ca {
            Some(ca) => CertificateDer::pem_slice_iter(ca).flatten().collect(),
            None => rustls_native_certs::load_native_certs().certs,
        }
    }
}

impl TlsSources {
    /// The files that the options `ca`, `cert`, `key` and `server_name` name, in this order.
    pub(super) fn named([ca, cert, key, server_name]: [Option<String>; 4]) -> Result<Self> {
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                Some((Source::named("cert", &cert)?, Source::named("key", &key)?))
            }
            (None, None) => None,
            _ => return Err(Error::config("`cert` and `key` go together: give both or none")),
        };
        let ca = ca.map(|path| Source::named("ca", &path)).transpose()?;
        Ok(Self { ca, identity, server_name })
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Source> {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(identity)
    }

    /// Reads the files. Fails if the contents of one cannot be used, or if the private key does not belong to the certificate.
    pub(super) fn read(&self) -> Result<Tls> {
        let ca = self.ca.as_ref().map(Source::read).transpose()?;
        if ca.as_ref().is_some_and(|ca| !is_authority(ca)) {
            return Err(Error::config("option `ca`: the file has no certificate in PEM"));
        }
        let identity = match &self.identity {
            None => None,
            Some((cert, key)) => Some(identity(cert.read()?, key.text()?)?),
        };
        Ok(Tls { ca, identity, server_name: self.server_name.clone() })
    }
}

fn is_authority(pem: &[u8]) -> bool {
    let (taken, _) = RootCertStore::empty()
        .add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    taken > 0
}

/// Checks that the certificate and the key belong together. They do not belong together if one file was replaced already and the
/// other was not.
fn identity(cert: Vec<u8>, key: Secret) -> Result<(Vec<u8>, Secret)> {
    let wrong = |message| Error::config(format!("options `cert` and `key`: {message}"));
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&cert).flatten().collect();
    if chain.is_empty() {
        return Err(wrong("there is no certificate in PEM"));
    }
    let private = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
        .map_err(|_| wrong("there is no private key in PEM"))?;
    let private = default_provider().key_provider.load_private_key(private);
    let private = private.map_err(|_| wrong("no such key is supported"))?;
    match CertifiedKey::new(chain, private).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(wrong("the key is not the certificate's"))
        }
        _ => Ok((cert, key)),
    }
}

/// The configuration of a client: it verifies the server, and shows our own certificate if there is one.
pub(crate) fn client_config(tls: &Tls) -> Result<ClientConfig> {
    let wrong = |error: rustls::Error| {
        Error::new(ErrorKind::Tls, "connect", "the TLS handshake cannot be set up")
            .with_source(error)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(tls.trusted());
    let Some((cert, key)) = &tls.identity else { return Ok(builder.with_no_client_auth()) };
    // Certificates that cannot be parsed are left out. That the file has at least one that can be parsed was checked when the file
    // was read.
    let chain = CertificateDer::pem_slice_iter(cert).flatten().collect();
    let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
        .map_err(|_| Error::config("option `key`: there is no private key in PEM"))?;
    builder.with_client_auth_cert(chain, key).map_err(wrong)
}

/// Does the handshake with the server at the other end of the stream. Its certificate must have the name that `tls` says, or else
/// the host's.
pub(crate) async fn secured<S>(stream: S, tls: &Tls, host: &str) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = tls.server_name().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name)
        .map_err(|_| io::Error::other("the server's name is none that a certificate could have"))?;
    let config = client_config(tls).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sets the process's default provider, if none is set. The client crates of MySQL and ZooKeeper can be given no provider and use
/// this default; they panic if none is set and two are compiled in. (That of etcd uses the default if one is set, and needs none.)
pub(crate) fn set_default_provider() {
    // This fails if one is set already, perhaps by another thread at this moment. That provider will do as well.
    let _ = default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_of_no_use() {
        assert!(!is_authority(b"-----BEGIN CERTIFICATE-----"));
        let key = Secret::new("secret-canary".to_owned());
        let error = identity(b"none".to_vec(), key).expect_err("there is none");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}
