//! The probe: the first request to the servers, before any session is opened. The probe does not use the client crate, because the
//! crate does not say why a connection failed.
//!
//! The request asks a server for a session with the shortest lease that the server grants. The session is ended at once. The answer
//! shows that the server has a quorum, and how long that lease is. In the same way, servers are asked later whether they still grant
//! the lease of a session (`grants.rs`).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{Instant, timeout_at};

use super::addresses::{Addresses, LOOKUP};
use super::config::Config;
use super::tls::{HANGS_UP, Handshake, is_tls};
use crate::backend::server::cause::{causes, connection_kind};
use crate::backend::server::tls::Tls;
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// How long the whole probe may take. This is less than the time for connecting, because the client crate needs a part of that
/// time.
const PATIENCE: Duration = Duration::from_secs(4);
/// If a server has not answered within this time, the probe asks the next server too.
const HEAD_START: Duration = Duration::from_millis(300);
/// The lease that is asked for to learn the shortest one that a server grants.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest answer that is read. A server's answer to `HELLO` has 37 bytes.
const LONGEST_ANSWER: usize = 1024;
/// A request for a session: protocol 0, no transaction seen, a lease that [`hello`] fills in, no earlier session, a password of 16
/// zeros, no read-only server.
const HELLO: [u8; 49] = {
    let mut hello = [0; 49];
    (hello[3], hello[31]) = (45, 16);
    hello
};
/// A request of the type `closeSession`, with the number 1.
const BYE: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5];

/// Asks the servers of the URL for a session, in random order, until one answers. Returns the shortest lease that this server
/// grants.
///
/// Each address of a host counts as a server. The next server is asked when one has failed, or has not answered within
/// `HEAD_START`. The probe has to be quick: after it, the client crate tries the servers again, in an order of its own, and needs
/// the rest of the time for that.
pub(super) async fn probe(config: &Config, addresses: &Arc<Addresses>) -> Result<Duration> {
    let mut hosts = config.servers.clone();
    // R4: the order is random, because a thousand clients must not all ask the same server first.
    hosts.shuffle(&mut env::rng());
    let tls = config.access.used().tls.as_ref().map(Handshake::new).transpose()?;
    let limit = Instant::now() + PATIENCE;
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut lookups = hosts.len();
    for host in hosts {
        look_up(host, Arc::clone(addresses), PATIENCE, tell.clone());
    }
    let (mut waiting, mut silent, mut failed) =
        (VecDeque::<Server>::new(), Vec::<Server>::new(), None);
    let mut next = Instant::now();
    loop {
        if next <= Instant::now()
            && let Some(server) = waiting.pop_front()
        {
            silent.push(server.clone());
            next = Instant::now() + HEAD_START;
            start(server, tls.clone(), SHORTEST, tell.clone());
        }
        if lookups == 0 && waiting.is_empty() && silent.is_empty() {
            break;
        }
        let until = if waiting.is_empty() { limit } else { limit.min(next) };
        match timeout_at(until, told.recv()).await {
            Ok(Some(Told::Probed(_, Ok(shortest)))) => return Ok(shortest),
            Ok(Some(Told::Probed(server, Err(error)))) => {
                silent.retain(|other| *other != server);
                failed = Some(error.at(&server.host.to_string()));
                next = Instant::now();
            }
            Ok(Some(Told::Found(host, found))) => {
                lookups -= 1;
                match found {
                    Ok(addresses) => waiting.extend(Server::of(&host, &addresses)),
                    Err(error) => {
                        failed = Some(explained(error, None, PATIENCE).at(&host.to_string()));
                    }
                }
            }
            Ok(None) => break,
            Err(_) if Instant::now() < limit => {}
            Err(_) => break,
        }
    }
    let does_not_answer =
        |server: Server| unavailable("the server does not answer").at(&server.host.to_string());
    let silent = silent.pop().map(does_not_answer);
    Err(silent.or(failed).unwrap_or_else(|| unavailable("no server answers")))
}

/// What the servers have granted that were asked for a lease.
pub(super) struct Granted {
    /// The shortest lease.
    pub(super) least: Duration,
    /// Whether each host of the URL has granted one, by one of its addresses.
    pub(super) is_by_all: bool,
}

/// Asks all servers at once for a session with the lease `wanted`. `None`: no server has granted a session.
///
/// After the first answer, the other servers have the time `rest` to answer too. A server that refuses, or that does not answer, has
/// no say.
pub(super) async fn least_granted(
    servers: &[Host],
    addresses: &Arc<Addresses>,
    tls: Option<&Tls>,
    wanted: Duration,
    rest: Duration,
) -> Option<Granted> {
    let tls = tls.map(Handshake::new).transpose().ok()?;
    let (tell, mut told) = mpsc::unbounded_channel();
    for host in servers {
        look_up(host.clone(), Arc::clone(addresses), LOOKUP, tell.clone());
    }
    let (mut awaited, mut limit) = (servers.len(), Instant::now() + PATIENCE);
    let mut least: Option<Duration> = None;
    let mut silent: Vec<_> = servers.iter().collect();
    while awaited > 0 {
        match timeout_at(limit, told.recv()).await {
            Ok(Some(Told::Found(host, found))) => {
                let found = Server::of(&host, &found.unwrap_or_default());
                awaited = awaited - 1 + found.len();
                for server in found {
                    start(server, tls.clone(), wanted, tell.clone());
                }
            }
            Ok(Some(Told::Probed(server, granted))) => {
                awaited -= 1;
                if let Ok(granted) = granted {
                    silent.retain(|host| **host != server.host);
                    limit = limit.min(Instant::now() + rest);
                    least = Some(least.map_or(granted, |least| least.min(granted)));
                }
            }
            Ok(None) | Err(_) => break,
        }
    }
    least.map(|least| Granted { least, is_by_all: silent.is_empty() })
}

/// A host of the URL, at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    host: Host,
    address: SocketAddr,
}

/// A message to [`probe`], from a task or thread that it has started.
enum Told {
    /// The look-up of a host's addresses has ended.
    Found(Host, io::Result<Vec<SocketAddr>>),
    /// A server was asked for a session. The result is the lease that it granted.
    Probed(Server, Result<Duration>),
}

impl Server {
    fn of(host: &Host, addresses: &[SocketAddr]) -> Vec<Self> {
        let at = |address: &SocketAddr| Self { host: host.clone(), address: *address };
        addresses.iter().map(at).collect()
    }
}

fn look_up(host: Host, addresses: Arc<Addresses>, limit: Duration, tell: UnboundedSender<Told>) {
    tokio::spawn(async move {
        let found = addresses.of(&host, limit).await.map(|found| found.addresses);
        // If the caller has returned already, sending fails. Then nobody needs the addresses any more.
        let _ = tell.send(Told::Found(host, found));
    });
}

/// Starts a thread that asks a server for a session with the lease `wanted`, and that then tells which lease the server granted.
///
/// The thread does not belong to the runtime. A runtime's threads stay for a while after their work, and a forked child that drops
/// its copy of the runtime would wait for them.
fn start(server: Server, tls: Option<Handshake>, wanted: Duration, tell: UnboundedSender<Told>) {
    let unstarted = Told::Probed(server.clone(), Err(unavailable("no thread can be started")));
    let tell_from_there = tell.clone();
    let greet = move || {
        let greeted = probe_one(&server, tls.as_ref(), wanted, PATIENCE);
        // Who only asks which lease is granted is not told why not. To find that out would take one more of the connections that a
        // server allows.
        let plain = (tls.is_none() && wanted == SHORTEST).then_some(&server);
        let not_its = || unavailable("the server does not answer as ZooKeeper does");
        let granted = greeted
            .map_err(|error| explained(error, plain, PATIENCE))
            .and_then(|answer| granted_lease(&answer).ok_or_else(not_its));
        let _ = tell_from_there.send(Told::Probed(server, granted));
    };
    if thread::Builder::new().name("coordination-probe".into()).spawn(greet).is_err() {
        let _ = tell.send(unstarted);
    }
}

fn probe_one(
    server: &Server,
    tls: Option<&Handshake>,
    wanted: Duration,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let stream = dial(server, patience)?;
    match tls {
        None => say_hello(stream, wanted),
        Some(tls) => say_hello(tls.shake_hands(&server.host, stream)?, wanted),
    }
}

fn dial(server: &Server, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server.address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Asks for a session with the lease `wanted`, reads the answer, and asks the server to end the session.
fn say_hello(mut stream: impl Read + Write, wanted: Duration) -> io::Result<Vec<u8>> {
    stream.write_all(&hello(wanted))?;
    stream.flush()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_ANSWER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of unlikely length"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    // If this request does not reach the server, the session ends when its lease is over.
    let _ = stream.write_all(&BYE).and_then(|()| stream.flush());
    Ok(answer)
}

/// The request for a session with the lease `wanted`.
fn hello(wanted: Duration) -> [u8; HELLO.len()] {
    let wanted = i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX);
    let mut hello = HELLO;
    hello[16..20].copy_from_slice(&wanted.to_be_bytes());
    hello
}

/// The lease that a server's answer to [`HELLO`] grants; `None`: this is not such an answer, or it grants no session.
pub(super) fn granted_lease(answer: &[u8]) -> Option<Duration> {
    let (protocol, rest) = answer.split_first_chunk::<4>()?;
    let (lease, _) = rest.split_first_chunk::<4>()?;
    let lease = u64::try_from(i32::from_be_bytes(*lease)).ok().filter(|lease| *lease > 0)?;
    (i32::from_be_bytes(*protocol) == 0).then(|| Duration::from_millis(lease))
}

/// The error that tells the user why a probe failed. `plain`: the server, if the probe used no TLS; then this may find out whether
/// the server wants TLS.
fn explained(error: io::Error, plain: Option<&Server>, patience: Duration) -> Error {
    let kind = if is_tls(&error) { ErrorKind::Tls } else { connection_kind(&causes(Some(&error))) };
    let wants_tls = || plain.is_some_and(|server| wants_tls(server, patience));
    let said = error.to_string();
    let (kind, message) = match (kind, error.kind()) {
        (ErrorKind::Dns, _) => (kind, "the host's name does not resolve"),
        (ErrorKind::Refused, _) => (kind, "nothing listens there"),
        (ErrorKind::Tls, _) => (kind, &*said),
        (_, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            (kind, "the server does not answer")
        }
        _ if is_hang_up(&error) && wants_tls() => {
            (ErrorKind::Tls, "the server wants TLS: use zookeeper+tls://")
        }
        _ if is_hang_up(&error) => (kind, HANGS_UP),
        _ => (kind, "the connection failed"),
    };
    Error::new(kind, "connect", message).with_source(error)
}

/// Whether a server speaks TLS. Called after this server hung up on a probe without TLS. The handshake here trusts no certificate,
/// so if the server speaks TLS, the handshake fails with an error of TLS.
fn wants_tls(server: &Server, patience: Duration) -> bool {
    let trial = Handshake::trial();
    let Some(tls) = &trial else { return false };
    let shaken = dial(server, patience).and_then(|stream| tls.shake_hands(&server.host, stream));
    shaken.is_err_and(|error| is_tls(&error))
}

pub(super) fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
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
        assert_eq!(hello(Duration::from_millis(0x0102_0304))[16..20], [1, 2, 3, 4]);
        assert_eq!(BYE.len(), 4 + 8);
        assert_eq!(i32::from_be_bytes([BYE[8], BYE[9], BYE[10], BYE[11]]), -11);
    }

    #[test]
    fn an_answer_tells_the_lease() {
        let mut answer = vec![0, 0, 0, 0, 0, 0, 0x0f, 0xa0];
        answer.extend([1; 29]);
        assert_eq!(granted_lease(&answer), Some(Duration::from_secs(4)));
        answer[3] = 1;
        assert_eq!(granted_lease(&answer), None, "another protocol");
        assert_eq!(granted_lease(&[0; 37]), None, "no session");
        assert_eq!(granted_lease(&[0; 7]), None);
    }
}
