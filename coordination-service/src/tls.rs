//! TLS: the certificate and the key of our listeners, and by what clients' certificates are checked. All of it can be replaced while
//! we run.
//!
//! A build without the features `tls` and `tls-ring` has `no_tls.rs` in the place of this file. The provider of cryptography is named
//! here, and not the process's default, of which there is none where two are compiled in.

mod client;

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
#[cfg(not(feature = "tls-ring"))]
use rustls::crypto::aws_lc_rs::default_provider;
#[cfg(feature = "tls-ring")]
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub(crate) use self::client::Client;
use self::client::Verifier;
use crate::settings::TlsFiles;
use crate::stalled::Stalled;
use crate::turns::Turns;

/// How long a client may take until the connection is encrypted.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The first byte of what a client sends that wants to speak TLS.
const RECORD: u8 = 0x16;
/// HTTP/2, as clients name it in the handshake.
const HTTP2: &[u8] = b"h2";
/// For who speaks HTTP here.
const PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
    This port speaks HTTPS: begin the URL with https://\n";

/// A connection whose handshake is done.
pub(crate) type EncryptedStream = TlsStream<Stalled<TcpStream>>;

/// Whether HTTP/2 was agreed upon.
pub(crate) fn is_http2(stream: &EncryptedStream) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(HTTP2)
}

/// What connections are encrypted with.
pub(crate) struct Tls {
    files: TlsFiles,
    loaded: watch::Sender<Arc<Certificate>>,
    /// A handshake costs us a signature, and who asks for it hardly anything.
    turns: Turns,
}

/// A certificate with its key.
pub(crate) struct Certificate {
    config: Arc<ServerConfig>,
    own: Arc<CertifiedKey>,
    /// What those of clients are checked by, if they are asked for one.
    clients: Option<Arc<Verifier>>,
}

/// Our certificate alone. A connection may last for long, and lists of revoked certificates are large, and replaced each day.
#[derive(Clone)]
pub(crate) struct OwnCertificate(Arc<CertifiedKey>);

impl Certificate {
    fn new(own: Arc<CertifiedKey>, clients: Option<Arc<Verifier>>) -> Result<Self, String> {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = match &clients {
            Some(clients) => config.with_client_cert_verifier(clients.for_handshakes()),
            None => config.with_no_client_auth(),
        };
        let resolver = SingleCertAndKey::from(Arc::clone(&own));
        let mut config = config.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        if clients.is_some() {
            // Whoever goes on with a session of before is not asked again for a certificate, whose time may be over.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), own, clients })
    }

    /// What a connection keeps of it.
    pub(crate) fn own(&self) -> OwnCertificate {
        OwnCertificate(Arc::clone(&self.own))
    }
}

impl OwnCertificate {
    /// Whether it is for this host, a name or an address.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let certificate = ParsedCertificate::try_from(&self.0.cert[0]);
        let (Ok(certificate), Ok(name)) = (certificate, ServerName::try_from(host)) else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

impl Tls {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, String> {
        let certificate = Certificate::new(own(&files)?, clients(&files)?)?;
        let loaded = watch::Sender::new(Arc::new(certificate));
        Ok(Self { files, loaded, turns: Turns::default() })
    }

    /// Reads our certificate and its key again, for connections from now on; what is wrong changes nothing.
    pub(crate) fn reload(&self) -> Result<(), String> {
        self.replace(own(&self.files)?, self.certificate().clients.clone())
    }

    /// The same of what clients' certificates are checked by: a key of ours that is wrong is to keep nobody in who was revoked.
    pub(crate) fn reload_clients(&self) -> Result<(), String> {
        self.replace(Arc::clone(&self.certificate().own), clients(&self.files)?)
    }

    fn replace(
        &self,
        own: Arc<CertifiedKey>,
        clients: Option<Arc<Verifier>>,
    ) -> Result<(), String> {
        self.loaded.send_replace(Arc::new(Certificate::new(own, clients)?));
        Ok(())
    }

    /// The one for connections from now on.
    pub(crate) fn certificate(&self) -> Arc<Certificate> {
        Arc::clone(&self.loaded.borrow())
    }

    /// Encrypts the connection, within a time; and who has shown a certificate there.
    pub(crate) async fn accept(
        self: Arc<Self>,
        stream: TcpStream,
        certificate: Arc<Certificate>,
    ) -> io::Result<(EncryptedStream, Option<Client>)> {
        let late = |_| Err(io::Error::new(ErrorKind::TimedOut, "no handshake in time"));
        let handshake = self.handshake(stream, &certificate);
        let handshake = tokio::time::timeout(HANDSHAKE, handshake).await;
        let stream = handshake.unwrap_or_else(late)?;
        let client = Client::of(&stream, &self, &certificate);
        Ok((stream, client))
    }

    async fn handshake(
        &self,
        mut stream: TcpStream,
        certificate: &Certificate,
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
        let opened = self.turns.take(acceptor.accept(Stalled::new(stream))).await;
        if let (Some(by), Err(error)) = (&certificate.clients, &opened) {
            by.tell(error);
        }
        opened
    }
}

/// Our certificate and its key.
fn own(files: &TlsFiles) -> Result<Arc<CertifiedKey>, String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let chain: Vec<CertificateDer<'static>> = all(&files.certificate, "certificate")?;
    if is_open(&files.key).map_err(|error| unreadable(&files.key, &error))? {
        return Err(format!(
            "{key} can be read by others, or is another user's: chmod 600, or 640 if it is root's"
        ));
    }
    let private = PrivateKeyDer::from_pem_slice(&content(&files.key)?)
        .map_err(|_| format!("there is no private key in PEM in {key}"))?;
    let own = CertifiedKey::from_der(chain, private, &default_provider());
    own.map(Arc::new).map_err(|error| format!("{certificate} and {key}: {error}"))
}

/// What clients' certificates are checked by, if they are asked for one.
fn clients(files: &TlsFiles) -> Result<Option<Arc<Verifier>>, String> {
    let provider = Arc::new(default_provider());
    let clients = files.clients.as_ref().map(|files| Verifier::new(files, &provider).map(Arc::new));
    clients.transpose()
}

/// All of this kind that is in a file, which has to be something.
fn all<T: PemObject>(path: &Path, what: &str) -> Result<Vec<T>, String> {
    let shown = path.display();
    let all: Result<Vec<T>, _> = T::pem_slice_iter(&content(path)?).collect();
    let all = all.map_err(|_| format!("{shown} is not PEM"))?;
    if all.is_empty() {
        return Err(format!("there is no {what} in PEM in {shown}"));
    }
    Ok(all)
}

fn content(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
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
