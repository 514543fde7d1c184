//! TLS by the client crate, and by the probe.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use data_encoding::BASE64;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use zookeeper_client::{
    Client, Connector, Error as ZooKeeperError, TlsCa, TlsCerts, TlsDynamicCerts, TlsIdentity,
    TlsOptions,
};

use super::probe::is_hang_up;
use crate::backend::server::tls::{Tls, client_config, set_default_provider};
use crate::error::{Error, Result};
use crate::url::Host;

/// What is said of a server that hangs up on the probe.
pub(super) const HANGS_UP: &str =
    "the server hangs up: it has no quorum, is read-only, or has too many connections";

/// The certificates with which the client crate connects, and which can be exchanged at any time.
pub(super) struct Certs(TlsDynamicCerts);

impl Certs {
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        Ok(Self(TlsDynamicCerts::new(certs(tls)?)))
    }

    /// Exchanges the certificates. An error is unlikely, because the files were checked when they were read. If there is one, the
    /// crate keeps the certificates that it has.
    pub(super) fn update(&self, tls: &Tls) {
        if let Ok(certs) = certs(tls) {
            self.0.update(certs);
        }
    }

    pub(super) async fn connect(
        &self,
        connector: Connector,
        servers: &str,
    ) -> Result<Client, ZooKeeperError> {
        let options = TlsOptions::new().with_certs(self.0.clone());
        connector.with_tls(options).secure_connect(servers).await
    }
}

fn certs(tls: &Tls) -> Result<TlsCerts> {
    let wrong = |option: &str, error: ZooKeeperError| {
        Error::config(format!("option `{option}`: the file has no use: {error}"))
    };
    let text = |option: &str, pem: &[u8]| {
        String::from_utf8(pem.to_vec())
            .map_err(|_| Error::config(format!("option `{option}`: the file is not PEM text")))
    };
    set_default_provider();
    let authorities = match &tls.ca {
        Some(ca) => text("ca", ca)?,
        None => pem(tls),
    };
    let ca = TlsCa::from_pem(&authorities).map_err(|error| wrong("ca", error))?;
    let mut builder = TlsCerts::builder().with_ca(ca);
    if let Some((cert, key)) = &tls.identity {
        let identity = TlsIdentity::from_pem(&text("cert", cert)?, key.expose());
        builder = builder.with_identity(identity.map_err(|error| wrong("cert` and `key", error))?);
    }
    builder.build().map_err(|error| wrong("ca", error))
}

/// The certificates of the trusted authorities as PEM text.
fn pem(tls: &Tls) -> String {
    let pem = tls.authorities().into_iter().map(|certificate| {
        let text = BASE64.encode(&certificate);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    });
    pem.collect()
}

/// How the probe does the handshake with a server.
#[derive(Clone)]
pub(super) struct Handshake(Arc<ClientConfig>);

impl Handshake {
    /// Made of files that the client crate has accepted before.
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        client_config(tls).map(Arc::new).map(Self)
    }

    /// Trusts no certificate, so that the handshake fails with an error of TLS if the server speaks TLS. `None`: this build has no
    /// TLS.
    pub(super) fn trial() -> Option<Self> {
        Self::new(&Tls::trial()?).ok()
    }

    pub(super) fn shake_hands(
        &self,
        host: &Host,
        mut stream: TcpStream,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from(host.name.clone())
            .map_err(|_| io::Error::other("no certificate can have the name of this host"))?;
        let mut connection =
            ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| match is_hang_up(&error) {
                true => {
                    io::Error::other("the server hangs up in the handshake: it may speak no TLS")
                }
                false => error,
            })?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

pub(super) fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
}
