//! Checks of what is known of a session's lease after the client crate has connected again, at a server that only accepts sessions.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Client, SessionState, StateWatcher};

use super::ending::Ending;
use super::grants::Grants;
use super::probe::Granted;
use crate::time::BootInstant;

/// The client crate gives up connections after 3/5 of it, and the servers are asked within 1/40 of it after a new connection.
const LEASE: Duration = Duration::from_secs(20);
/// The lease that the server grants as soon as it grants less.
const SHORT: Duration = Duration::from_secs(2);
/// A test that waits for so long has failed.
const LATE: Duration = Duration::from_secs(60);

/// A server that accepts each session, and confirms each of its calls without doing anything.
struct Server {
    port: u16,
    connections: Mutex<Vec<TcpStream>>,
    grants_less: AtomicBool,
    is_away: AtomicBool,
}

impl Server {
    fn start() -> io::Result<Arc<Self>> {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let server = Arc::new(Self {
            port: listening.local_addr()?.port(),
            connections: Mutex::default(),
            grants_less: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&server);
        thread::spawn(move || {
            for stream in listening.incoming().flatten() {
                let serving = Arc::clone(&accepting);
                // A stream that ends with an error is one that was cut.
                thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        Ok(server)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        self.connections.lock().expect("nobody panics with it").push(stream.try_clone()?);
        if self.is_away.load(Ordering::SeqCst) {
            return stream.shutdown(Shutdown::Both);
        }
        stream.read_exact(&mut [0; 49])?;
        let lease = if self.grants_less.load(Ordering::SeqCst) { SHORT } else { LEASE };
        let lease = u32::try_from(lease.as_millis()).expect("it is short");
        // The length, the protocol's version, the lease, the session's id, its password of 16 bytes, and that this server writes.
        let mut answer = vec![0, 0, 0, 37, 0, 0, 0, 0];
        answer.extend(lease.to_be_bytes());
        answer.extend([7; 8]);
        answer.extend([0, 0, 0, 16]);
        answer.extend([7; 16]);
        answer.push(0);
        stream.write_all(&answer)?;
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let mut call = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut call)?;
            // The length, the number of the call, that of a transaction, and that there is no error.
            let mut reply = vec![0, 0, 0, 16];
            reply.extend(call.iter().copied().take(4));
            reply.extend([0; 12]);
            stream.write_all(&reply)?;
        }
    }

    /// Breaks all connections.
    fn cut(&self) {
        for connection in self.connections.lock().expect("nobody panics with it").drain(..) {
            // The client may have broken it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// What the servers say when they are asked which lease they grant.
struct Asked {
    times: watch::Sender<usize>,
    /// The shortest lease, and whether all servers have answered; `None`: no server answers yet.
    answer: watch::Sender<Option<(Duration, bool)>>,
}

impl Asked {
    async fn ask(self: Arc<Self>) -> Option<Granted> {
        self.times.send_modify(|times| *times += 1);
        let mut answer = self.answer.subscribe();
        let (least, is_by_all) = (*answer.wait_for(Option::is_some).await.ok()?)?;
        Some(Granted { least, is_by_all })
    }

    fn answer(&self, least: Duration, is_by_all: bool) {
        self.answer.send_replace(Some((least, is_by_all)));
    }

    /// Waits until the servers were asked so often.
    async fn asked(&self, times: usize) {
        let mut asked = self.times.subscribe();
        let enough = asked.wait_for(|asked| *asked >= times);
        timeout(LATE, enough).await.expect("they are asked").expect("it is owned by `self`");
    }
}

/// A session, whose servers are asked after each new connection.
struct Session {
    server: Arc<Server>,
    _client: Client,
    states: StateWatcher,
    grants: Arc<Grants>,
    servers: Arc<Asked>,
}

impl Session {
    async fn open() -> Self {
        let server = Server::start().expect("a port is free");
        let connector = Client::connector().with_session_timeout(LEASE);
        let connector = connector.with_connection_timeout(LEASE * 3 / 5);
        let client = connector.connect(&format!("127.0.0.1:{}", server.port)).await;
        let client = client.expect("the server accepts each session");
        assert_eq!(client.session_timeout(), LEASE);
        let grants = Arc::new(Grants::new(client.state_watcher()));
        let servers =
            Arc::new(Asked { times: watch::Sender::new(0), answer: watch::Sender::new(None) });
        let (following, asked) = (Arc::clone(&grants), Arc::clone(&servers));
        tokio::spawn(async move {
            following.ask_after_reconnects(LEASE, || Arc::clone(&asked).ask()).await;
        });
        Self { server, states: client.state_watcher(), _client: client, grants, servers }
    }

    /// Has seen the present connection, as the sender of a heartbeat has.
    fn connection(&self) -> StateWatcher {
        let mut seen = self.states.clone();
        seen.state();
        seen
    }

    /// Breaks the connection, and waits for the next one.
    async fn reconnect(&mut self) {
        self.server.cut();
        let connected =
            async { while self.states.changed().await != SessionState::SyncConnected {} };
        timeout(LATE, connected).await.expect("the server is there");
    }

    /// [`Grants::hold_on`] for a heartbeat that was answered on this connection.
    async fn counts(&self, connection: &StateWatcher) -> bool {
        let counts = timeout(LATE, self.grants.hold_on(connection)).await;
        counts.expect("the servers have granted the lease")
    }

    fn waits(&self, connection: &StateWatcher) -> bool {
        self.grants.hold_on(connection).now_or_never().is_none()
    }
}

#[tokio::test]
async fn no_heartbeat_counts_before_the_servers_have_granted_the_lease() {
    let mut session = Session::open().await;
    let first = session.connection();
    assert!(session.counts(&first).await, "they have granted it when the session was opened");
    session.reconnect().await;
    let second = session.connection();
    session.servers.asked(1).await;
    assert!(session.waits(&second), "they are asked");
    session.servers.answer(LEASE, true);
    assert!(session.counts(&second).await);
    assert!(!session.counts(&first).await, "it was answered on an earlier connection");
}

#[tokio::test]
async fn a_shorter_lease_is_told() {
    let mut session = Session::open().await;
    session.reconnect().await;
    session.servers.answer(SHORT, true);
    timeout(LATE, session.grants.shortened()).await.expect("it is told");
}

/// The host that has granted less may be the one that does not answer.
#[tokio::test]
async fn after_a_connection_that_broke_unasked_each_host_has_to_grant_the_lease() {
    let mut session = Session::open().await;
    session.reconnect().await;
    session.servers.asked(1).await;
    session.reconnect().await;
    let connection = session.connection();
    session.servers.answer(LEASE, false);
    tokio::select! {
        biased;
        _ = session.counts(&connection) => panic!("not every host has granted the lease"),
        // The second time for this connection, because not all have answered at the first time.
        () = session.servers.asked(3) => {}
    }
    session.servers.answer(LEASE, true);
    assert!(session.counts(&connection).await);
}

/// One host is enough where every connection was asked about.
#[tokio::test]
async fn after_a_connection_that_was_asked_about_one_host_has_to_grant_the_lease() {
    let mut session = Session::open().await;
    session.servers.answer(LEASE, false);
    for times in [1, 2] {
        session.reconnect().await;
        let connection = session.connection();
        // Then it is known that there is a connection. A heartbeat that is answered before does not count as one of this connection.
        session.servers.asked(times).await;
        assert!(session.counts(&connection).await);
    }
}

/// The client crate goes by the shorter lease from the new connection on, and gives the session up while the servers may know it.
#[tokio::test]
async fn the_end_of_a_session_with_a_shorter_lease_is_not_confirmed() {
    let mut session = Session::open().await;
    let ending = Arc::new(Ending::new(LEASE, SHORT / 2, BootInstant::now()));
    let following = Arc::clone(&ending).follow(session.connection(), Arc::clone(&session.grants));
    tokio::spawn(following);
    assert!(!session.grants.may_be_shorter());
    session.reconnect().await;
    session.servers.asked(1).await;
    assert!(session.grants.may_be_shorter(), "they are asked");
    session.servers.answer(LEASE, true);
    assert!(session.counts(&session.connection()).await);
    assert!(!session.grants.may_be_shorter(), "they have granted it");
    session.servers.answer.send_replace(None);
    session.server.grants_less.store(true, Ordering::SeqCst);
    session.reconnect().await;
    session.servers.asked(2).await;
    session.server.is_away.store(true, Ordering::SeqCst);
    session.server.cut();
    let end = timeout(LATE, ending.ended()).await.expect("the crate gives it up");
    assert!(!end.is_word(), "no server has said it: {end:?}");
}
