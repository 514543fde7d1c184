//! A client on one connection that stays open.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Outcome;

/// By which of the APIs a lock is acquired.
#[derive(Clone, Copy)]
pub(crate) enum Api {
    Native,
    Rdlm,
}

/// What is asked for: the path and the body.
pub(crate) struct Wanted(String, String);

impl Wanted {
    /// A lock of this name, to wait for and to hold for so many seconds.
    pub(crate) fn lock(api: Api, name: &str, wait: u32, lease: u32) -> Self {
        match api {
            Api::Native => Self(
                format!("/v1/locks/{name}"),
                format!(r#"{{"wait_ms":{},"lease_ms":{}}}"#, wait * 1_000, lease * 1_000),
            ),
            Api::Rdlm => Self(
                format!("/locks/{name}"),
                format!(r#"{{"title":"","wait":{wait},"lifetime":{lease}}}"#),
            ),
        }
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// If all of it is there.
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let body = &bytes[end + 4..];
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let answer = Self { status, head, body: String::from_utf8_lossy(body).into_owned() };
        // Without a length there is no body: 204.
        let length = answer.header("content-length").map_or(Some(0), |length| length.parse().ok());
        (length == Some(body.len())).then_some(answer)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// An error, unless the status is this one.
    pub(crate) fn must_be(self, status: u16) -> Outcome<Self> {
        if self.status == status {
            return Ok(self);
        }
        Err(format!("{status} was expected: {}\n{}", self.head, self.body).into())
    }

    /// The path of what was granted.
    fn location(&self) -> Outcome<String> {
        let location = self.header("location").ok_or("no location")?;
        let path = match location.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("", |begin| &rest[begin..]),
            None => location,
        };
        Ok(path.to_owned())
    }
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

pub(crate) struct Client {
    host: String,
    stream: Box<dyn Stream>,
}

impl Client {
    pub(crate) fn connect(at: &str) -> Outcome<Self> {
        Ok(Self { host: at.to_owned(), stream: Box::new(connected(at)?) })
    }

    pub(crate) fn connect_encrypted(at: &str, trusting: &Arc<ClientConfig>) -> Outcome<Self> {
        let tls = ClientConnection::new(Arc::clone(trusting), ServerName::try_from("localhost")?)?;
        let mut stream = StreamOwned::new(tls, connected(at)?);
        stream.conn.complete_io(&mut stream.sock)?;
        Ok(Self { host: "localhost".to_owned(), stream: Box::new(stream) })
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> Outcome {
        let (host, length) = (&self.host, body.len());
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(text.as_bytes())?;
        Ok(self.stream.flush()?)
    }

    pub(crate) fn answer(&mut self) -> Outcome<Answer> {
        let (mut bytes, mut some) = (Vec::new(), [0; 4_096]);
        loop {
            let count = self.stream.read(&mut some)?;
            if count == 0 {
                return Err("the connection was closed within an answer".into());
            }
            bytes.extend_from_slice(&some[..count]);
            if let Some(answer) = Answer::read(&bytes) {
                return Ok(answer);
            }
        }
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Outcome<Answer> {
        self.send(method, path, body)?;
        self.answer()
    }

    /// Asks for a lock; [`granted`](Self::granted) reads the answer.
    pub(crate) fn want(&mut self, Wanted(path, body): &Wanted) -> Outcome {
        self.send("POST", path, body)
    }

    /// The path at which what was granted is released.
    pub(crate) fn granted(&mut self) -> Outcome<String> {
        self.answer()?.must_be(201)?.location()
    }

    pub(crate) fn acquire(&mut self, wanted: &Wanted) -> Outcome<String> {
        self.want(wanted)?;
        self.granted()
    }

    pub(crate) fn release(&mut self, path: &str) -> Outcome {
        self.ask("DELETE", path, "")?.must_be(204).map(drop)
    }

    /// Acquires and releases.
    pub(crate) fn cycle(&mut self, wanted: &Wanted) -> Outcome {
        let path = self.acquire(wanted)?;
        self.release(&path)
    }

    /// The sum of what a gauge of the service has, whatever its labels.
    pub(crate) fn gauge(&mut self, name: &str) -> Outcome<f64> {
        let metrics = self.ask("GET", "/metrics", "")?.must_be(200)?.body;
        let series = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        let values = series.filter_map(|series| series.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }
}

fn connected(at: &str) -> Outcome<TcpStream> {
    let stream = TcpStream::connect(at)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// For a client that trusts this authority.
pub(crate) fn trusting(authority: &Path) -> Outcome<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(Arc::new(config.with_no_client_auth()))
}
