//! A session at ZooKeeper, and the calls that are made in this session.
//!
//! When the connection breaks, the client crate connects again by itself, to whichever server answers, and keeps the session and
//! its watches. The crate sends the calls of a session in the order in which they are made. But suppose that a connection breaks
//! and the next connection goes to the same server. Then this server may carry out calls of the next connection first, and only
//! afterwards a call that was sent on the old connection: see `write_fence.rs`. If the next connection goes to another server, the
//! old server refuses such a late call.
//!
//! A server answers the calls of a session in their order, so a heartbeat has to wait for the calls before it. Therefore only a few
//! calls of a session may be in flight at the same time (`UNDER_WAY`). A heartbeat does not count, and is sent at once.

use std::collections::HashSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use zookeeper_client::{
    Client, Error as ZooKeeperError, MultiReadResult, SessionState, StateWatcher,
};

use super::addresses::{Addresses, LOOKUP};
use super::config::Config;
use super::ending::Ending;
use super::error::from_zookeeper;
use super::grants::Grants;
use super::identity::{Identity, Presented};
use super::probe::{self, Granted};
use super::watch_room::WatchRoom;
use super::write_fence::WriteFence;
use crate::env::spawn;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::panics;
use crate::time::BootInstant;
use crate::url::{Host, Secret};

/// How many calls of a session may be in flight at the same time, besides a heartbeat. A server answers requests one after the
/// other. So at a slow server, a heartbeat waits behind this many requests of every busy process, and there may be dozens of
/// processes.
const UNDER_WAY: usize = 8;

/// How long an address may take to accept a connection. After that it counts as an address that does not answer.
const ACCEPTING: Duration = Duration::from_millis(500);
/// If a host has several addresses, this time is divided among all places in the crate's list of servers: each place may leave a
/// request unanswered for its share of this time. During the session, some addresses may stop answering or be replaced, and then
/// there must be time to try the others.
const SEVERAL: Duration = Duration::from_secs(3);
/// Each of these places may leave a request unanswered at least this long, however many places there are. A server answers a
/// heartbeat only after the commits before it. So with a shorter time, connections to servers with slow disks would be given up.
const SHORTEST: Duration = Duration::from_secs(1);

/// Opens sessions at the servers of the URL.
pub(super) struct Connector {
    servers: Vec<Host>,
    pub(super) addresses: Arc<Addresses>,
    identity: Arc<Identity>,
    /// If nothing arrives on a connection for this time, the connection is given up.
    silence: Duration,
    /// The shortest lease that the servers grant; zero before the probe has found it out.
    pub(super) shortest: Duration,
}

/// One session at ZooKeeper, from its opening to its end.
pub(super) struct Connection {
    /// `None` as soon as the session is being closed. The crate ends the session when the last reference to the client is dropped.
    client: Mutex<Option<Arc<Client>>>,
    closing: watch::Sender<bool>,
    states: StateWatcher,
    /// How the session has ended. The task that [`follow`](Self::follow) starts finds this out.
    pub(super) ending: Arc<Ending>,
    /// Whether the servers still grant the lease, after the crate has connected again.
    pub(super) grants: Arc<Grants>,
    identity: Arc<Identity>,
    /// The password that the server has confirmed last. A refused call is repeated only if there is a newer password.
    presented: Presented,
    /// The free slots for calls. Each call in flight, except a heartbeat, takes one.
    room: Arc<Semaphore>,
    /// How much the session may watch at the same time.
    pub(super) watch_room: Arc<WatchRoom>,
    /// The session's id at ZooKeeper. Its ephemeral nodes have this number as their owner.
    pub(super) owner: i64,
    /// The path of the member's node, which is named by the session's member id. Heartbeats write to it.
    pub(super) member: String,
    pub(super) write_fence: WriteFence,
    /// The lease that the server granted on the first connection.
    pub(super) ttl: Duration,
    /// The moment just before the server was `asked` for the session, by the request that opened it. The lease counts from this
    /// moment.
    pub(super) asked: BootInstant,
}

impl Connector {
    pub(super) fn new(config: &Config, silence: Duration) -> Result<Self> {
        let identity = Arc::new(Identity::new(config)?);
        let (servers, addresses) = (config.servers.clone(), Arc::default());
        Ok(Self { servers, addresses, identity, silence, shortest: Duration::ZERO })
    }

    /// Opens a session. Asks for the lease `ttl`; the server may grant another.
    pub(super) async fn connect(
        &self,
        ttl: Duration,
        member: String,
        write_fence: WriteFence,
    ) -> Result<Connection, ZooKeeperError> {
        let (servers, silence) = self.places().await;
        let asked = BootInstant::now();
        let mut connector = Client::connector()
            .with_session_timeout(ttl)
            .with_connection_timeout(silence)
            // The crate fails after it has tried each server once. The caller of `open` decides when to try again.
            .with_fail_eagerly();
        let password = self.identity.password();
        if let Some(password) = &password {
            connector = connector.with_auth("digest", &self.identity.digest(password));
        }
        self.identity.offer();
        let client = self.identity.connect(connector, &servers).await?;
        self.identity.connected();
        let ttl = client.session_timeout();
        Ok(Connection {
            ending: Arc::new(Ending::new(ttl, self.shortest, asked)),
            grants: Arc::new(Grants::new(client.state_watcher())),
            identity: Arc::clone(&self.identity),
            presented: Presented::new(password),
            states: client.state_watcher(),
            owner: client.session_id().0,
            member,
            write_fence,
            ttl,
            client: Mutex::new(Some(Arc::new(client))),
            closing: watch::Sender::new(false),
            room: Arc::new(Semaphore::new(UNDER_WAY)),
            watch_room: Arc::default(),
            asked,
        })
    }

    /// Asks all servers for a session with this lease. `None`: no server has granted a session.
    pub(super) async fn least_granted(&self, lease: Duration) -> Option<Granted> {
        let credentials = self.identity.credentials();
        // The server that answers our heartbeats has as long for this answer as for those, or `SILENCE / 2`.
        let rest = self.silence / 2;
        let tls = credentials.tls.as_ref();
        probe::least_granted(&self.servers, &self.addresses, tls, lease, rest).await
    }

    /// The list of servers that the client crate gets, and how long each place in this list may take to answer.
    ///
    /// If the crate gets a name, it tries the addresses of this name one after the other, but within the time for one connection.
    /// So if the first address does not answer, it never tries the next. Therefore the list has, for a name with several addresses,
    /// those addresses that accept connections now. The name itself comes after them, because it may have other addresses later in
    /// the session. With TLS the list has names only, because the crate takes from the list the name that the server's certificate
    /// must have.
    ///
    /// If a name has only one address, the list needs only the name. The crate looks the name up for each of its attempts, and while
    /// this fails, it cannot connect. To list that address as well would make the crate try a host that does not answer twice as
    /// often. But if the name cannot be looked up even now, the addresses that it had before are listed, however few they are.
    async fn places(&self) -> (String, Duration) {
        let found = match self.identity.is_secure() {
            false => self.addresses.of_all(&self.servers, LOOKUP).await,
            true => self.servers.iter().map(|_| None).collect(),
        };
        let listed = found.into_iter().map(|found| {
            let listed = found.filter(|found| found.addresses.len() > 1 || found.are_earlier);
            listed.map_or_else(Vec::new, |found| found.addresses)
        });
        let hosts: Vec<_> = self.servers.iter().zip(listed).collect();
        let accepting = accepting(hosts.iter().flat_map(|(_, found)| found.iter().copied())).await;
        let (mut places, mut has_several) = (Vec::new(), false);
        for (host, found) in hosts {
            has_several |= !found.is_empty();
            let (accept, silent): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|address| accepting.contains(address));
            // If most addresses do not answer now, the cause is probably the network, and they may answer later in the session. So
            // they are listed too.
            let silent = if accept.len() < silent.len() { silent } else { Vec::new() };
            places.extend(accept.iter().chain(&silent).map(ToString::to_string));
            places.push(host.to_string());
        }
        let silence = silence(self.silence, has_several, places.len());
        (places.join(","), silence)
    }
}

/// How long each place in the client crate's list of servers may take to answer. `places`: how many places the list has. `alone`:
/// how long each place may take if no name has several addresses. If a name has several, the places share the time [`SEVERAL`], but
/// each gets at least [`SHORTEST`], and at most `alone`.
fn silence(alone: Duration, has_several: bool, places: usize) -> Duration {
    let places = u32::try_from(places).unwrap_or(u32::MAX).max(1);
    if has_several { alone.min((SEVERAL / places).max(SHORTEST)) } else { alone }
}

/// Those of the addresses that accept connections now. Opening a session must be quick, so it must not spend time on addresses that
/// do not answer.
async fn accepting(addresses: impl Iterator<Item = SocketAddr>) -> HashSet<SocketAddr> {
    let accepts = async |address| {
        let tried = timeout(ACCEPTING, TcpStream::connect(address)).await;
        matches!(tried, Ok(Ok(_))).then_some(address)
    };
    let tries: JoinSet<_> = addresses.map(accepts).collect();
    tries.join_all().await.into_iter().flatten().collect()
}

impl Connection {
    /// How much of the lease was left at `moment`. The lease counts from the request that opened the session.
    pub(super) fn lease_at(&self, moment: BootInstant) -> Duration {
        self.ttl.saturating_sub(moment.saturating_duration_since(self.asked))
    }

    /// Starts a task that waits until the session has ended, and then notes in `ending` how it has ended.
    pub(super) fn follow(&self) {
        let (ending, grants) = (Arc::clone(&self.ending), Arc::clone(&self.grants));
        spawn(&Handle::current(), ending.follow(self.states.clone(), grants));
    }

    /// Starts a task that asks the servers after each new connection of the session which lease they grant. The task ends together
    /// with the session.
    pub(super) fn follow_grants(&self, connector: &Arc<Connector>) {
        let (ending, grants) = (Arc::clone(&self.ending), Arc::clone(&self.grants));
        let (connector, lease) = (Arc::clone(connector), self.ttl);
        let ask = move || {
            let connector = Arc::clone(&connector);
            async move { connector.least_granted(lease).await }
        };
        spawn(&Handle::current(), async move {
            tokio::select! {
                _ = ending.ended() => {}
                () = grants.ask_after_reconnects(lease, ask) => {}
            }
        });
    }

    /// Makes a call, as soon as a slot is free and the session has a connection.
    pub(super) async fn call<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, ZooKeeperError>>,
    {
        let made = self.raw_call(operation, call).await?;
        made.map_err(|error| from_zookeeper(operation, &error))
    }

    /// Does what [`call`](Self::call) does, but returns the crate's own error, for callers that distinguish its kinds.
    pub(super) async fn raw_call<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<Result<T, ZooKeeperError>>
    where
        F: Future<Output = Result<T, ZooKeeperError>>,
    {
        let calling = async {
            let _room = self.room.acquire().await;
            let client = self.connected(operation).await?;
            let told = self.presented.password();
            let outcome = call(Arc::clone(&client)).await;
            self.admitted(operation, &client, &told, outcome).await
        };
        self.unless_closing(operation, calling).await
    }

    /// Does what [`raw_call`](Self::raw_call) does, but does not wait for a slot. This is for heartbeats: it succeeds only if the
    /// servers still grant the lease on the connection on which the answer came.
    pub(super) async fn urgent_call<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<Result<T, ZooKeeperError>>
    where
        F: Future<Output = Result<T, ZooKeeperError>>,
    {
        let calling = async {
            let client = self.connected(operation).await?;
            let mut connection = self.states.clone();
            connection.state();
            let (told, sent) = (self.presented.password(), BootInstant::now());
            let outcome = call(Arc::clone(&client)).await;
            if outcome.is_ok() {
                self.ending.answered(sent);
                if !self.grants.hold_on(&connection).await {
                    return Err(from_zookeeper(operation, &ZooKeeperError::ConnectionLoss));
                }
            }
            self.admitted(operation, &client, &told, outcome).await
        };
        self.unless_closing(operation, calling).await
    }

    /// Does what [`call`](Self::call) does, but in a task of its own: if the caller drops this future, the task still waits for the
    /// answers.
    pub(super) async fn detached_call<T, F>(
        self: &Arc<Self>,
        operation: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, ZooKeeperError>> + Send + 'static,
        T: Send + 'static,
    {
        let connected = async {
            let room = Arc::clone(&self.room).acquire_owned().await;
            Ok((room, self.connected(operation).await?))
        };
        let (room, client) = self.unless_closing(operation, connected).await?;
        let told = self.presented.password();
        let mut work = Box::pin(call(Arc::clone(&client)));
        // The first poll sends the requests, and it is made here, before this future can be dropped. So if the caller drops this
        // future and then makes another call, that call is sent after these requests.
        let outcome = match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                let connection = Arc::clone(self);
                let answers = async move {
                    let _room = room;
                    let working = async {
                        let outcome = work.await;
                        connection.admitted(operation, &client, &told, outcome).await
                    };
                    connection.unless_closing(operation, working).await
                };
                spawn(&Handle::current(), answers)
                    .await
                    .map_err(|ended| unanswered(operation, ended))??
            }
        };
        outcome.map_err(|error| from_zookeeper(operation, &error))
    }

    /// Called with the outcome of each call. `told`: the password that the server had when the call was sent. If a node has refused
    /// access (`NoAuth`), and there is a newer password than `told`, this function makes sure that the newer one is sent to the
    /// server. Then it returns an error after which the caller retries, because the same call may now succeed. In all other cases
    /// this function returns the outcome unchanged.
    async fn admitted<T>(
        &self,
        operation: &'static str,
        client: &Client,
        told: &Option<Secret>,
        outcome: Result<T, ZooKeeperError>,
    ) -> Result<Result<T, ZooKeeperError>> {
        let is_refused = matches!(outcome, Err(ZooKeeperError::NoAuth));
        if !is_refused || !self.identity.present(client, told, &self.presented).await {
            return Ok(outcome);
        }
        let message = "a node does not let us in, and there is another password now";
        let error = Error::new(ErrorKind::Unavailable, operation, message);
        Err(error.with_effect(Effect::None))
    }

    async fn unless_closing<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut closing = self.closing.subscribe();
        tokio::select! {
            biased;
            // Each call in flight has a reference to the client, and the session ends only when no reference is left. So when the
            // session is closed, all its calls are dropped here.
            _ = closing.wait_for(|closing| *closing) => Err(closed(operation)),
            outcome = work => outcome,
        }
    }

    /// Waits until the session has a connection. If a request were made without a connection, the crate would keep the request and
    /// send it on the next connection, perhaps long after the caller has given up.
    async fn connected(&self, operation: &'static str) -> Result<Arc<Client>> {
        let mut states = self.states.clone();
        loop {
            let over = match states.state() {
                SessionState::SyncConnected => {
                    self.identity.connected();
                    return self.client().clone().ok_or_else(|| closed(operation));
                }
                SessionState::Disconnected | SessionState::ConnectedReadOnly => {
                    self.identity.offer();
                    states.changed().await;
                    continue;
                }
                SessionState::Expired => ZooKeeperError::SessionExpired,
                SessionState::AuthFailed => ZooKeeperError::AuthFailed,
                SessionState::Closed => ZooKeeperError::ClientClosed,
            };
            return Err(from_zookeeper(operation, &over));
        }
    }

    /// Resolves when the session has a new connection, or when it is over.
    pub(super) async fn reconnected(&self) {
        let mut states = self.states.clone();
        states.state();
        while states.changed().await == SessionState::Disconnected {}
    }

    /// Reads the names of the children of `children`, and the nodes `paths`, all as of one moment. `None` stands for a node that
    /// does not exist.
    ///
    /// With `is_fresh`, a `sync` is sent first, which brings the server up to date with the leader. Without it, the server's data
    /// may lag behind.
    pub(super) async fn read(
        &self,
        operation: &'static str,
        is_fresh: bool,
        children: Option<&str>,
        paths: &[String],
    ) -> Result<Reading> {
        let reading = |client: Arc<Client>| async move {
            let mut reader = client.new_multi_reader();
            if let Some(children) = children {
                reader.add_get_children(children)?;
            }
            for path in paths {
                reader.add_get_data(path)?;
            }
            // The `sync` and the read are both sent before the answer to either has come. The server carries them out in this
            // order.
            let any = children.or(paths.first().map(String::as_str));
            let synced = any.filter(|_| is_fresh).map(|path| client.sync(path));
            let read = reader.commit();
            if let Some(synced) = synced {
                synced.await?;
            }
            allowed(read.await?)
        };
        let mut results = self.call(operation, reading).await?.into_iter();
        let names = match children.and_then(|_| results.next()) {
            Some(MultiReadResult::Children { children }) => Some(children),
            Some(other) => missing(operation, other)?,
            None => None,
        };
        let found = results.map(|result| match result {
            MultiReadResult::Data { data, stat } => Ok(Some(Found { data, stat })),
            other => missing(operation, other),
        });
        Ok((names, found.collect::<Result<_>>()?))
    }

    /// The names of the children of a node, as of now; empty if the node does not exist.
    pub(super) async fn children(
        &self,
        operation: &'static str,
        path: &str,
    ) -> Result<Vec<String>> {
        let (children, _) = self.read(operation, true, Some(path), &[]).await?;
        Ok(children.unwrap_or_default())
    }

    /// Reads a node; `None`: it does not exist.
    pub(super) async fn read_one(
        &self,
        operation: &'static str,
        path: String,
    ) -> Result<Option<Found>> {
        let (_, found) = self.read(operation, false, None, &[path]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Reads the names of the children of each of these nodes. A node that does not exist has no children.
    ///
    /// Each request reads `batch` nodes. All requests are sent before the first answer has come.
    pub(super) async fn children_of(
        &self,
        operation: &'static str,
        paths: &[String],
        batch: usize,
    ) -> Result<Vec<Vec<String>>> {
        let reading = |client: Arc<Client>| async move {
            let mut sent = Vec::new();
            for batch in paths.chunks(batch) {
                let mut reader = client.new_multi_reader();
                for path in batch {
                    reader.add_get_children(path)?;
                }
                sent.push(reader.commit());
            }
            let mut results = Vec::new();
            for answer in sent {
                results.extend(answer.await?);
            }
            allowed(results)
        };
        let results = self.call(operation, reading).await?;
        let children = results.into_iter().map(|result| match result {
            MultiReadResult::Children { children } => Ok(children),
            other => missing(operation, other).map(Option::unwrap_or_default),
        });
        children.collect()
    }

    /// Ends the session, drops its calls in flight, and waits until the session has ended. Returns true only if a server has
    /// confirmed the end.
    pub(super) async fn close(&self) -> bool {
        self.begin_close();
        self.ending.ended().await.is_word()
    }

    /// Begins to end the session, and drops its calls in flight. Does not wait for the end.
    pub(super) fn begin_close(&self) {
        self.closing.send_replace(true);
        drop(self.client().take());
    }

    /// Whether the session is over as far as the client knows, or whether this process has begun to close it.
    pub(super) fn is_over(&self) -> bool {
        *self.closing.borrow() || self.states.peek_state().is_terminated()
    }

    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The error of a call if the task that made the call has ended without an answer.
fn unanswered(operation: &'static str, ended: JoinError) -> Error {
    panics::of_task(operation, ended).unwrap_or_else(|| closed(operation))
}

fn closed(operation: &'static str) -> Error {
    Error::lost(operation, LossReason::ConnectionLost)
}

/// What `read` returns: the names of the children, and the nodes. `None` stands for a node that does not exist.
type Reading = (Option<Vec<String>>, Vec<Option<Found>>);

/// A node, as it was read.
pub(super) struct Found {
    pub(super) data: Vec<u8>,
    pub(super) stat: zookeeper_client::Stat,
}

/// Returns the results, or the error `NoAuth` if any of the nodes has refused access.
fn allowed(results: Vec<MultiReadResult>) -> Result<Vec<MultiReadResult>, ZooKeeperError> {
    let is_refusal = |result: &MultiReadResult| {
        matches!(result, MultiReadResult::Error { err: ZooKeeperError::NoAuth })
    };
    match results.iter().any(is_refusal) {
        true => Err(ZooKeeperError::NoAuth),
        false => Ok(results),
    }
}

/// What a result without data or children means: `Ok(None)` if the node does not exist, otherwise an error.
fn missing<T>(operation: &'static str, result: MultiReadResult) -> Result<Option<T>> {
    match result {
        MultiReadResult::Error { err: ZooKeeperError::NoNode } => Ok(None),
        MultiReadResult::Error { err } => Err(from_zookeeper(operation, &err)),
        _ => {
            let message = "the server's answer is to another question";
            Err(Error::new(ErrorKind::Unavailable, operation, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_given_up_before_a_slow_disk_has_answered() {
        let alone = Duration::from_millis(1_500);
        assert_eq!(silence(alone, false, 9), alone);
        assert_eq!(silence(alone, true, 2), alone);
        assert_eq!(silence(alone, true, 9), SHORTEST);
    }

    #[cfg(coordination_internals)]
    mod named {
        use std::fs;
        use std::io::{self, Read, Write};
        use std::net::{Ipv4Addr, TcpListener};
        use std::path::PathBuf;
        use std::thread;

        use tokio::time::Instant;

        use super::*;
        use crate::url::Url;

        const LEASE: Duration = Duration::from_secs(10);

        /// A file that says where a name is found; the last part of its path is the name.
        fn file_of(name: &str) -> PathBuf {
            let directory = std::env::temp_dir().join("coordination-names");
            fs::create_dir_all(&directory).expect("it may be made");
            directory.join(name)
        }

        fn connector_of(url: &str) -> Result<Connector> {
            let mut url = Url::parse_by_scheme(url)?;
            Connector::new(&Config::parse(&mut url)?, SHORTEST)
        }

        /// Starts a server that grants each session the lease [`LEASE`]. Returns its port.
        fn server() -> io::Result<u16> {
            let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = listening.local_addr()?.port();
            // The length, the protocol's version, the lease in milliseconds, and then the session's id and password.
            let mut answer = [1; 41];
            answer[..12].copy_from_slice(&[0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 0x27, 0x10]);
            thread::spawn(move || {
                for mut stream in listening.incoming().flatten() {
                    // Whoever only looks whether the server accepts connections sends nothing.
                    let _ =
                        stream.read_exact(&mut [0; 49]).and_then(|()| stream.write_all(&answer));
                }
            });
            Ok(port)
        }

        /// Whether it is so before long. A look-up that takes longer than it may on a machine that stands still is made again.
        async fn is_soon(mut is_so: impl AsyncFnMut() -> bool) -> bool {
            let begun = Instant::now();
            while !is_so().await {
                if begun.elapsed() > 3 * LEASE {
                    return false;
                }
                tokio::time::sleep(LOOKUP / 50).await;
            }
            true
        }

        #[tokio::test]
        async fn servers_are_found_while_their_names_cannot_be_looked_up() -> Result<()> {
            let port = server().expect("a port is free");
            let name = format!("z{}.test", std::process::id());
            let file = file_of(&name);
            let set = |addresses: &str| fs::write(&file, addresses).expect("the file is ours");
            let connector = connector_of(&format!("zookeeper://{name}:{port}/n"))?;
            let is_granted = async || {
                let granted = connector.least_granted(LEASE).await;
                granted.is_some_and(|granted| granted.least == LEASE && granted.is_by_all)
            };
            set("");
            assert!(!is_granted().await, "the address is not known yet");
            set("127.0.0.1");
            assert!(is_soon(async || is_granted().await).await);
            let named = format!("{name}:{port}");
            assert!(is_soon(async || connector.places().await.0 == named).await, "{named}");
            set("away");
            let is_found = is_soon(async || is_granted().await).await;
            assert!(is_found, "the server is at its last address");
            let places = connector.places().await.0;
            assert_eq!(places, format!("127.0.0.1:{port},{name}:{port}"));
            set("");
            let is_left = is_soon(async || !is_granted().await).await;
            assert!(is_left, "another server may be at its last address");
            assert_eq!(connector.places().await.0, named);
            // Nothing listens at the new address.
            set("127.0.0.2");
            assert!(!is_granted().await, "the name is looked up first");
            fs::remove_file(&file).expect("the file is ours");
            Ok(())
        }

        /// Otherwise opening a session would take longer with each name for which the name server is silent.
        #[tokio::test(start_paused = true)]
        async fn all_names_are_looked_up_at_the_same_time() -> Result<()> {
            let names = [1, 2, 3].map(|number| format!("s{number}-{}.test", std::process::id()));
            for name in &names {
                fs::write(file_of(name), "silent").expect("the file is ours");
            }
            let servers = format!("{}:7,127.0.0.1:7", names.join(":7,"));
            let connector = connector_of(&format!("zookeeper://{servers}/n"))?;
            let begun = Instant::now();
            let places = connector.places().await.0;
            // The clock goes on only while all tasks wait.
            let took = begun.elapsed();
            for name in &names {
                fs::remove_file(file_of(name)).expect("the file is ours");
            }
            assert_eq!(places, servers);
            assert!(took < 2 * LOOKUP, "{took:?}");
            Ok(())
        }
    }
}
