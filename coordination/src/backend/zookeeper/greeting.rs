//! The first word to a server, by hand: the client crate does not say why a connection failed.
//!
//! It asks for the shortest session there is and ends it. The answer proves a quorum and tells the shortest lease.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use rand::seq::SliceRandom;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::config::Config;
use crate::backend::server::access::Tls;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;
use crate::world;

/// How long all of it may take: less than connecting may.
const PATIENCE: Duration = Duration::from_secs(4);
/// The longest answer that is read; the right one has 37 bytes.
const LONGEST_ANSWER: usize = 1024;
/// Protocol 0, no transaction seen, 1 ms, no session, a password of 16 zeros, no read-only server.
const HELLO: [u8; 49] = {
    let mut hello = [0; 49];
    (hello[3], hello[19], hello[31]) = (45, 1, 16);
    hello
};
/// Number 1, `closeSession`.
const BYE: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5];

/// Greets the servers of the URL, in random order, until one answers; tells the shortest lease it grants.
pub(super) async fn greet(config: &Config) -> Result<Duration> {
    let mut servers = config.servers.clone();
    // R4: a thousand clients must not all come to the same server.
    servers.shuffle(&mut world::rng());
    let tls = config.tls.as_ref().map(client_config).transpose()?;
    let patience = PATIENCE / u32::try_from(servers.len()).unwrap_or(u32::MAX);
    let mut last = None;
    for server in servers {
        let (tls, shown) = (tls.clone(), server.to_string());
        let greeting = tokio::task::spawn_blocking(move || greet_one(&server, tls, patience));
        let greeted = match tokio::time::timeout(patience, greeting).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(_)) => Err(unavailable("the greeting was interrupted")),
            Err(_) => Err(unavailable("the server does not answer")),
        };
        match greeted {
            Ok(shortest) => return Ok(shortest),
            Err(error) => last = Some(error.at(&shown)),
        }
    }
    Err(last.unwrap_or_else(|| unavailable("no server")))
}

fn greet_one(
    server: &Host,
    tls: Option<Arc<ClientConfig>>,
    patience: Duration,
) -> Result<Duration> {
    let stream = dial(server, patience)?;
    let answer = match tls {
        None => say_hello(stream).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                if wants_tls(server, patience) =>
            {
                Error::new(ErrorKind::Tls, "connect", "the server wants TLS: use zookeeper+tls://")
            }
            _ => no_answer(error),
        })?,
        Some(tls) => {
            let mut stream = shake_hands(server, tls, stream)?;
            say_hello(&mut stream).map_err(|error| {
                // That the certificate is not welcome is told after the handshake.
                if is_tls(&error) { refused_tls(error) } else { no_answer(error) }
            })?
        }
    };
    shortest_lease(&answer)
        .ok_or_else(|| unavailable("the server does not answer as ZooKeeper does"))
}

fn dial(server: &Host, patience: Duration) -> Result<TcpStream> {
    let addresses = (server.name.as_str(), server.port.unwrap_or_default()).to_socket_addrs();
    let addresses = addresses.map_err(|error| {
        Error::new(ErrorKind::Dns, "connect", "the host's name does not resolve").with_source(error)
    })?;
    let mut last = Error::new(ErrorKind::Dns, "connect", "the host's name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
                    set(&stream, Some(patience)).map_err(no_answer)?;
                }
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                last = Error::new(ErrorKind::Refused, "connect", "nothing listens there")
                    .with_source(error);
            }
            Err(error) => last = no_answer(error),
        }
    }
    Err(last)
}

fn shake_hands(
    server: &Host,
    tls: Arc<ClientConfig>,
    mut stream: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from(server.name.clone())
        .map_err(|_| Error::config("a host of the URL cannot be in a certificate"))?;
    let mut connection = ClientConnection::new(tls, name).map_err(|error| {
        Error::new(ErrorKind::Tls, "connect", "cannot begin with TLS").with_source(error)
    })?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(refused_tls)?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// Whether a server that hung up on a plain greeting takes one of TLS.
fn wants_tls(server: &Host, patience: Duration) -> bool {
    /// What an answer to that begins with: of a handshake, or an alert.
    const ANSWERS: [u8; 2] = [22, 21];
    choose_provider();
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let asked = || {
        let name = ServerName::try_from(server.name.clone()).ok()?;
        let mut hello = ClientConnection::new(Arc::new(config), name).ok()?;
        let mut stream = dial(server, patience).ok()?;
        hello.write_tls(&mut stream).ok()?;
        let mut first = [0];
        stream.read_exact(&mut first).ok()?;
        Some(ANSWERS.contains(&first[0]))
    };
    asked().unwrap_or(false)
}

/// Asks for a session, reads the answer and ends the session.
fn say_hello(mut stream: impl Read + Write) -> io::Result<Vec<u8>> {
    stream.write_all(&HELLO)?;
    stream.flush()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_ANSWER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of unlikely length"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    // If it is lost, the session ends by itself.
    let _ = stream.write_all(&BYE).and_then(|()| stream.flush());
    Ok(answer)
}

/// The lease that a server grants to who asks for none; `None`: that is not what it was asked.
pub(super) fn shortest_lease(answer: &[u8]) -> Option<Duration> {
    let (protocol, rest) = answer.split_first_chunk::<4>()?;
    let (lease, _) = rest.split_first_chunk::<4>()?;
    let lease = u64::try_from(i32::from_be_bytes(*lease)).ok().filter(|lease| *lease > 0)?;
    (i32::from_be_bytes(*protocol) == 0).then(|| Duration::from_millis(lease))
}

fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>> {
    choose_provider();
    let wrong = |option: &str| {
        Error::config(format!("option `{option}`: the file is not PEM of what it is for"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&authorities(tls)) {
        roots.add(certificate.map_err(|_| wrong("ca"))?).map_err(|_| wrong("ca"))?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
            let certificates = certificates.map_err(|_| wrong("cert"))?;
            let key =
                PrivateKeyDer::from_pem_slice(key.expose().as_bytes()).map_err(|_| wrong("key"))?;
            config.with_client_auth_cert(certificates, key).map_err(|_| wrong("key"))?
        }
    };
    Ok(Arc::new(config))
}

/// The certificates that count, as PEM: those of `ca`, or the system's.
pub(super) fn authorities(tls: &Tls) -> Vec<u8> {
    let system = || {
        let certificates = rustls_native_certs::load_native_certs().certs;
        let pem = certificates.iter().map(|certificate| {
            let text = BASE64.encode(certificate);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        });
        pem.collect::<String>().into_bytes()
    };
    tls.ca.clone().unwrap_or_else(system)
}

/// Both this and the client crate take the process' default, and panic if several could be it and none was chosen.
pub(super) fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may have chosen one meanwhile, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
}

fn refused_tls(error: io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the server hangs up on TLS: it may speak none".to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return no_answer(error),
        _ => error.to_string(),
    };
    Error::new(ErrorKind::Tls, "connect", message).with_source(error)
}

fn no_answer(error: io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the server hangs up: it has no quorum, is read-only, or has too many connections"
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the server does not answer",
        _ => "the connection failed",
    };
    unavailable(message).with_source(error)
}

fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "connect", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_has_the_length_it_says() {
        assert_eq!(HELLO.len(), 4 + 45);
        assert_eq!(BYE.len(), 4 + 8);
        assert_eq!(i32::from_be_bytes([BYE[8], BYE[9], BYE[10], BYE[11]]), -11);
    }

    #[test]
    fn an_answer_tells_the_lease() {
        let mut answer = vec![0, 0, 0, 0, 0, 0, 0x0f, 0xa0];
        answer.extend([1; 29]);
        assert_eq!(shortest_lease(&answer), Some(Duration::from_secs(4)));
        answer[3] = 1;
        assert_eq!(shortest_lease(&answer), None, "another protocol");
        assert_eq!(shortest_lease(&[0; 37]), None, "no session");
        assert_eq!(shortest_lease(&[0; 7]), None);
    }
}
