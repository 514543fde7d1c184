//! A TCP proxy of our own, to make network faults between a client and a server.
//!
//! It runs on its own thread and runtime, so a test that blocks its executor does not stop it, and
//! its methods block the caller for a moment at most. Each direction has a [`Mode`] that can be
//! switched at any time and applies to all connections; a connection can be cut after, or before,
//! a chosen byte, frame or message, where the [`Protocol`] is known and there is no TLS.
//!
//! A proxy acknowledges what it reads, whatever happens to it then; only a firewall or a network
//! namespace can lose a packet that nobody has acknowledged.

mod accepting;
mod connection;
mod frames;
mod http1;
mod http2;
mod lane;
mod member;
mod mysql;
mod postgres;
mod resp;
mod zookeeper;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc as std_mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

pub use frames::Protocol;

use super::{ports::free_address, rerun::count_fault, wait_until};
use accepting::{Order, Route};
use connection::{End, Ending};
use lane::{Lane, Then};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What happens to the bytes of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Forwarded at once.
    #[default]
    Pass,
    /// Forwarded this much later, in order, at full throughput.
    Delay(Duration),
    /// Forwarded in writes of one byte.
    Dribble,
    /// Kept, and forwarded when the mode changes: an outage that TCP survives by retransmitting.
    Stall,
    /// With the next bytes that come the receiver is told that no more will (FIN), and they are dropped with
    /// all that follow; the other direction goes on. New connections are treated the same.
    HalfClose,
    /// Read and dropped. A connection that lost something this way stays silent in this direction
    /// even after the mode changes, since its stream has a hole; new connections work.
    Blackhole,
}

/// What a cut counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Frames of any type; of HTTP/2, SETTINGS and PING included.
    Frames,
    /// Frames that begin a request, to the server only; of HTTP/2, HEADERS that open a stream.
    Requests,
    /// Frames that carry what is said; of HTTP/2, DATA that is not empty: with gRPC, one for each small
    /// message.
    Messages,
}

/// A running proxy; its connections are reset on drop.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Forwards a free loopback port to `target`, which speaks HTTP/2, or whose frames are of no interest.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub fn start(target: SocketAddr) -> Self {
        Self::speaking(Protocol::Http2, target)
    }

    /// Forwards a free loopback port to `target`, which speaks this.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub fn speaking(protocol: Protocol, target: SocketAddr) -> Self {
        let address = free_address();
        Self::new(protocol, &[(address, target)], Senders::Any)
    }

    /// Likewise for several servers: to each of them leads its own port, at one other loopback address. Whoever is sent on to
    /// another port of the same host stays with the proxy.
    ///
    /// # Panics
    ///
    /// When there is no free address.
    pub fn to_all(protocol: Protocol, targets: &[SocketAddr]) -> Self {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let own = std::process::id()
            .wrapping_mul(64)
            .wrapping_add(TAKEN.fetch_add(1, Ordering::SeqCst) as u32);
        let [_, high, middle, low] = own.to_be_bytes();
        // Not of the kind that is everybody's: 127.0.0.1.
        let host = Ipv4Addr::new(127, 128 | high, middle, low);
        let routes: Vec<_> =
            targets.iter().map(|target| ((host, target.port()).into(), *target)).collect();
        Self::new(protocol, &routes, Senders::Any)
    }

    /// Likewise, for connections between servers that each have a loopback address of their own, so that one can be
    /// [barred](Self::bar) by it.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub fn by_address(protocol: Protocol, target: SocketAddr) -> Self {
        Self::new(protocol, &[(free_address(), target)], Senders::ByAddress)
    }

    /// Likewise, for connections that members of an etcd cluster make to each other: it learns who sends, so
    /// that one member can be [barred](Self::bar).
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub fn between_members(target: SocketAddr) -> Self {
        Self::new(Protocol::Http2, &[(free_address(), target)], Senders::ByHeader)
    }

    fn new(protocol: Protocol, routes: &[(SocketAddr, SocketAddr)], senders: Senders) -> Self {
        let address = routes[0].0;
        let listen = |(address, target): &(SocketAddr, SocketAddr)| Route {
            listener: StdListener::bind(address).expect("the port is reserved for us"),
            address: *address,
            target: *target,
        };
        let routes = routes.iter().map(listen).collect();
        let shared = Arc::new(Shared::new(protocol, senders));
        let (orders, received) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accepting::run(routes, &shared, received)
            })
            .expect("a thread can be started");
        Self { address, shared, orders, thread: Some(thread) }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the mode of one direction.
    pub fn set(&self, direction: Direction, mode: Mode) {
        if mode != Mode::Pass {
            count_fault();
        }
        self.shared.lane(direction).mode.send_replace(mode);
    }

    /// Sets the mode of both directions.
    pub fn set_both(&self, mode: Mode) {
        self.set(Direction::ToServer, mode);
        self.set(Direction::ToClient, mode);
    }

    /// Lets everything through again: passes both ways, accepts, lets go of what it holds, and forgets cuts not yet
    /// made.
    pub fn heal(&self) {
        self.let_go();
        self.shared.lane(Direction::ToServer).disarm();
        self.shared.lane(Direction::ToClient).disarm();
        self.set_both(Mode::Pass);
        self.accept();
    }

    /// Closes a connection both ways as soon as `count` units, counted from now over all
    /// connections, have been forwarded in `direction`; once.
    pub fn cut_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::End);
    }

    /// Like [`Proxy::cut_after`], but the last of the `count` units is not forwarded: the sender has
    /// sent it and the receiver never gets it.
    ///
    /// To the client, this loses the answer to a request that was carried out.
    pub fn cut_before(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, false, Then::End);
    }

    /// Lets `count` units through in `direction`, counted from now over all connections, and keeps back
    /// what comes after them as [`Mode::Stall`] does, until the mode is set again; once.
    pub fn stall_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::Stall);
    }

    fn arm(&self, direction: Direction, unit: Unit, count: u64, is_after: bool, then: Then) {
        count_fault();
        self.shared.lane(direction).arm(unit, count, is_after, then);
    }

    /// Keeps back what clients send from now on, on whatever connection, until it is [let go](Self::let_go). Answers pass.
    pub fn hold(&self) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (0, u64::MAX));
    }

    /// The same for one connection alone, the first of which is number 1: it has fallen silent, and the others have not.
    pub fn hold_one(&self, number: u64) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (number, number));
    }

    /// Closes the clients' side of all connections. The server does not notice: of what was [held](Self::hold) nothing
    /// is lost, and what is sent on new connections passes.
    pub fn part(&self) {
        let last = self.connections();
        self.shared.kept.send_replace(Kept { from: 0, held: last, parted: last });
    }

    /// Delivers what was [held](Self::hold), also where the client [is gone](Self::part).
    pub fn let_go(&self) {
        self.shared.kept.send_modify(|kept| kept.held = 0);
    }

    /// Whether a cut, or a stall, has been asked for that was not made yet.
    pub fn is_cut_pending(&self) -> bool {
        [Direction::ToServer, Direction::ToClient]
            .iter()
            .any(|direction| self.shared.lane(*direction).is_cut_pending())
    }

    /// Closes all connections with a reset (RST); on return it is done.
    pub fn reset_all(&self) {
        count_fault();
        self.end_all(End::Reset);
    }

    /// Closes all connections in the ordinary way (FIN); on return it is done.
    pub fn close_all(&self) {
        count_fault();
        self.end_all(End::Close);
    }

    /// From now on, forgets each connection on which nothing is said for this long, as balancers do: what the client sends on
    /// it later is answered with a reset, and what the server sends is lost.
    pub fn forget_after(&self, idle: Duration) {
        count_fault();
        *lock(&self.shared.forgets) = Some(idle);
    }

    /// Refuses new connections: nothing listens any more. Those that are open stay.
    pub fn refuse(&self) {
        count_fault();
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Resets the connections of the member with this id, or address, and refuses its new ones until
    /// [`Proxy::admit_all`]: other members still reach the target.
    pub fn bar(&self, member: &str) {
        count_fault();
        lock(&self.shared.barred).insert(member.to_owned());
        let theirs = |(number, sender): (&u64, &Option<String>)| {
            (sender.as_deref() == Some(member)).then_some(*number)
        };
        let numbers = self.shared.open().iter().filter_map(theirs).collect();
        self.end(End::Reset, numbers);
    }

    /// Nobody is barred any more.
    pub fn admit_all(&self) {
        lock(&self.shared.barred).clear();
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open().len()
    }

    /// Bytes that came so far in `direction`, forwarded or not.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).bytes.load(Ordering::SeqCst)
    }

    /// Requests the client has sent so far: HTTP/2 streams it opened, forwarded or not.
    pub fn requests(&self) -> u64 {
        self.shared.lane(Direction::ToServer).counts().requests
    }

    /// Messages the client has sent so far: DATA frames that are not empty, forwarded or not.
    pub fn messages(&self) -> u64 {
        self.messages_in(Direction::ToServer)
    }

    /// Messages that came so far in `direction`.
    pub fn messages_in(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).counts().messages.values().sum()
    }

    /// Messages that came so far in `direction`, by connection (counted from one) and stream.
    pub fn messages_by_stream(&self, direction: Direction) -> BTreeMap<(u64, u32), u64> {
        self.shared.lane(direction).counts().messages.clone()
    }

    fn end_all(&self, end: End) {
        let open = self.shared.open().keys().copied().collect();
        self.end(end, open);
    }

    /// Ends these connections; on return it is done.
    fn end(&self, end: End, numbers: BTreeSet<u64>) {
        let whose = numbers.clone();
        self.shared.end.send_replace(Some(Ending { end, whose }));
        let ended = wait_until(Duration::from_secs(5), || {
            let open = self.shared.open();
            numbers.iter().all(|number| !open.contains_key(number))
        });
        assert!(ended, "connections of the proxy did not end");
    }

    fn order(&self, order: impl FnOnce(std_mpsc::Sender<()>) -> Order) {
        let (done, wait) = std_mpsc::channel();
        self.orders.send(order(done)).expect("the thread runs until drop");
        wait.recv().expect("the thread answers each order");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // It has no panics of its own worth more than the test's.
            let _ = thread.join();
        }
    }
}

/// How it is known who has made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    /// Not at all.
    Any,
    /// By its first request: [`member`].
    ByHeader,
    /// By its address.
    ByAddress,
}

/// What the proxy's connections share with its handle.
#[derive(Debug)]
struct Shared {
    protocol: Protocol,
    to_server: Lane,
    to_client: Lane,
    accepted: AtomicU64,
    /// The connections that are open, each with the member that it comes from, where that is known.
    open: Mutex<BTreeMap<u64, Option<String>>>,
    /// What is kept back from the server.
    kept: watch::Sender<Kept>,
    senders: Senders,
    /// Members that are not let through.
    barred: Mutex<BTreeSet<String>>,
    /// For how long nothing may be said on a connection before it is forgotten.
    forgets: Mutex<Option<Duration>>,
    end: watch::Sender<Option<Ending>>,
}

/// Connections from whose clients the server gets nothing more for now, and those that have no client any more.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// Those from this number on are held,
    from: u64,
    /// up to this one.
    held: u64,
    /// All up to this number.
    parted: u64,
}

impl Kept {
    fn holds(self, number: u64) -> bool {
        (self.from..=self.held).contains(&number)
    }
}

impl Shared {
    fn new(protocol: Protocol, senders: Senders) -> Self {
        Self {
            protocol,
            senders,
            to_server: Lane::default(),
            to_client: Lane::default(),
            accepted: AtomicU64::new(0),
            open: Mutex::default(),
            kept: watch::Sender::default(),
            barred: Mutex::default(),
            forgets: Mutex::default(),
            end: watch::Sender::new(None),
        }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Option<String>>> {
        lock(&self.open)
    }

    /// Whether the connection that comes from this member may go on.
    fn admits(&self, number: u64, sender: Option<String>) -> bool {
        // Before the look, so that whoever bars it either finds it or is seen.
        self.open().insert(number, sender.clone());
        sender.is_none_or(|sender| !lock(&self.barred).contains(&sender))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
