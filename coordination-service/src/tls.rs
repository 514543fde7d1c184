//! TLS: the certificate and the key of our listeners, which can be replaced while we run.
//!
//! A build without the features `tls` and `tls-ring` has `no_tls.rs` in the place of this file. The provider of cryptography is named
//! here, and not the process's default, of which there is none where two are compiled in.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
#[cfg(not(feature = "tls-ring"))]
use rustls::crypto::aws_lc_rs::default_provider;
#[cfg(feature = "tls-ring")]
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::settings::TlsFiles;
use crate::stalled::Stalled;
use crate::turns::Turns;

/// How long a client may take until the connection is encrypted.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The first byte of what a client sends that wants to speak TLS.
const RECORD: u8 = 0x16;
/// For who speaks HTTP here.
const PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
    This port speaks HTTPS: begin the URL with https://\n";

/// A connection whose handshake is done.
pub(crate) type EncryptedStream = TlsStream<Stalled<TcpStream>>;

/// What connections are encrypted with.
pub(crate) struct Tls {
    files: TlsFiles,
    loaded: RwLock<Arc<Certificate>>,
    /// A handshake costs us a signature, and who asks for it hardly anything.
    turns: Turns,
}

/// A certificate with its key.
pub(crate) struct Certificate {
    config: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

impl Certificate {
    /// Whether it is for this host, a name or an address.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let certificate = ParsedCertificate::try_from(&self.own);
        let (Ok(certificate), Ok(name)) = (certificate, ServerName::try_from(host)) else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

impl Tls {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, String> {
        let loaded = RwLock::new(Arc::new(read(&files)?));
        Ok(Self { files, loaded, turns: Turns::default() })
    }

    /// Reads the files again, for connections from now on; what is wrong changes nothing.
    pub(crate) fn reload(&self) -> Result<(), String> {
        let loaded = Arc::new(read(&self.files)?);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// The one for connections from now on.
    pub(crate) fn certificate(&self) -> Arc<Certificate> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Encrypts the connection, within a time.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        certificate: Arc<Certificate>,
    ) -> io::Result<EncryptedStream> {
        let late = |_| Err(io::Error::new(ErrorKind::TimedOut, "no handshake in time"));
        let handshake = self.handshake(stream, certificate);
        tokio::time::timeout(HANDSHAKE, handshake).await.unwrap_or_else(late)
    }

    async fn handshake(
        &self,
        mut stream: TcpStream,
        certificate: Arc<Certificate>,
    ) -> io::Result<EncryptedStream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first != [RECORD] {
            // What is left unread would reset the connection, and the answer with it.
            let _ = stream.try_read(&mut [0; 16 * 1024]);
            stream.write_all(PLAIN).await?;
            stream.shutdown().await?;
            return Err(io::Error::new(ErrorKind::InvalidData, "it does not speak TLS"));
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&certificate.config));
        self.turns.take(acceptor.accept(Stalled::new(stream))).await
    }
}

fn read(files: &TlsFiles) -> Result<Certificate, String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let unreadable = |what: &str, error: io::Error| format!("cannot read {what}: {error}");
    let pem =
        std::fs::read(&files.certificate).map_err(|e| unreadable(&certificate.to_string(), e))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{certificate} is not PEM"))?;
    let Some(own) = chain.first().cloned() else {
        return Err(format!("there is no certificate in PEM in {certificate}"));
    };
    if is_open(&files.key).map_err(|e| unreadable(&key.to_string(), e))? {
        return Err(format!(
            "{key} can be read by others, or is another user's: chmod 600, or 640 if it is root's"
        ));
    }
    let pem = std::fs::read(&files.key).map_err(|e| unreadable(&key.to_string(), e))?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| format!("there is no private key in PEM in {key}"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private);
    let mut config = config.map_err(|error| format!("{certificate} and {key}: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Certificate { config: Arc::new(config), own })
}

/// Whether others may read this key than its owner, us or root, and a group of root's.
fn is_open(key: &Path) -> io::Result<bool> {
    let there = std::fs::metadata(key)?;
    let own = rustix::process::geteuid().as_raw();
    Ok(match there.uid() {
        0 => there.mode() & 0o037 != 0,
        owner => owner != own || there.mode() & 0o077 != 0,
    })
}
