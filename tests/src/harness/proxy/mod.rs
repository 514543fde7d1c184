//! A TCP proxy that causes network faults between a client and a server.
//!
//! It runs on its own thread and runtime, so a test that blocks its executor does not stop it. Its methods block the
//! caller for a moment at most. Each direction has a [`Mode`] that can be changed at any time and applies to all
//! connections. A connection can be cut after, or before, a chosen byte, frame or message, if the proxy knows the
//! [`Protocol`] and there is no TLS.
//!
//! The kernel acknowledges all bytes that the proxy reads, even if the proxy then drops them. Only a firewall or a
//! network namespace can lose a packet before any kernel acknowledges it.

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

/// In which direction bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What the proxy does with the bytes of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The bytes are forwarded at once.
    #[default]
    Pass,
    /// The bytes are forwarded this much later, in order, at full throughput.
    Delay(Duration),
    /// The bytes are forwarded in writes of one byte.
    Dribble,
    /// The bytes are kept, and forwarded when the mode changes: an outage that TCP survives by retransmitting.
    Stall,
    /// At the next bytes that arrive, closes the receiver's side (FIN), and drops these bytes and all that follow; the
    /// other direction goes on. New connections are treated the same.
    HalfClose,
    /// The bytes are read and dropped. A connection that has lost bytes stays silent in this direction even after the
    /// mode has changed, because its stream has a hole; new connections work.
    Blackhole,
}

/// What is counted up to a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Frames of any type; in HTTP/2 also SETTINGS and PING.
    Frames,
    /// Frames that begin a request, to the server only; in HTTP/2, HEADERS that open a stream.
    Requests,
    /// Frames that carry a message; in HTTP/2, DATA frames that are not empty: with gRPC, one for each small message.
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
    /// Forwards a free loopback port to `target`, which speaks HTTP/2, or whose frames do not matter to the test.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn start(target: SocketAddr) -> Self {
        Self::speaking(Protocol::Http2, target)
    }

    /// Forwards a free loopback port to `target`, which speaks this protocol.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn speaking(protocol: Protocol, target: SocketAddr) -> Self {
        let address = free_address();
        Self::new(protocol, &[(address, target)], Senders::Any)
    }

    /// Forwards to several servers: one loopback address, with a port for each server that equals the server's own
    /// port. A client that a server redirects to another port of the same host therefore stays with the proxy.
    ///
    /// # Panics
    ///
    /// If there is no free address.
    pub fn to_all(protocol: Protocol, targets: &[SocketAddr]) -> Self {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let own = std::process::id()
            .wrapping_mul(64)
            .wrapping_add(TAKEN.fetch_add(1, Ordering::SeqCst) as u32);
        let [_, high, middle, low] = own.to_be_bytes();
        // The proxy does not listen at 127.0.0.1, where the servers themselves have these ports.
        let host = Ipv4Addr::new(127, 128 | high, middle, low);
        let routes: Vec<_> =
            targets.iter().map(|target| ((host, target.port()).into(), *target)).collect();
        Self::new(protocol, &routes, Senders::Any)
    }

    /// Forwards connections between servers. Each server connects from a loopback address of its own, so the proxy can
    /// [refuse](Self::bar) one of them.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn by_address(protocol: Protocol, target: SocketAddr) -> Self {
        Self::new(protocol, &[(free_address(), target)], Senders::ByAddress)
    }

    /// Forwards connections between members of an etcd cluster. The proxy finds out which member has made each
    /// connection, so it can [refuse](Self::bar) one of them.
    ///
    /// # Panics
    ///
    /// If there is no free port.
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

    /// The address to which clients connect.
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

    /// Ends all faults: forwards in both directions, accepts connections, delivers what it held, and drops cuts that
    /// were not made yet.
    pub fn heal(&self) {
        self.let_go();
        self.shared.lane(Direction::ToServer).disarm();
        self.shared.lane(Direction::ToClient).disarm();
        self.set_both(Mode::Pass);
        self.accept();
    }

    /// Closes a connection in both directions as soon as `count` units have been forwarded in `direction`, counted from
    /// now over all connections. Happens only once.
    pub fn cut_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::End);
    }

    /// Like [`Proxy::cut_after`], but does not forward the last of the `count` units: the sender has sent it, and the
    /// receiver never gets it.
    ///
    /// In the direction to the client, this loses the answer to a request that the server has carried out.
    pub fn cut_before(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, false, Then::End);
    }

    /// Forwards `count` units in `direction`, counted from now over all connections, and keeps back what follows, as
    /// [`Mode::Stall`] does, until the mode is set again. Happens only once.
    pub fn stall_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::Stall);
    }

    fn arm(&self, direction: Direction, unit: Unit, count: u64, is_after: bool, then: Then) {
        count_fault();
        self.shared.lane(direction).arm(unit, count, is_after, then);
    }

    /// From now on keeps back what clients send, on all connections, until it is [delivered](Self::let_go). What the
    /// server sends is still forwarded.
    pub fn hold(&self) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (0, u64::MAX));
    }

    /// Keeps back what the client sends on one connection; the first connection has number 1. The other connections go
    /// on.
    pub fn hold_one(&self, number: u64) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (number, number));
    }

    /// Closes the clients' side of all connections, without the server noticing. Requests that were [held](Self::hold)
    /// are not lost, and requests on new connections pass.
    pub fn part(&self) {
        let last = self.connections();
        self.shared.kept.send_replace(Kept { from: 0, held: last, parted: last });
    }

    /// Delivers the requests that were [held](Self::hold), also those of connections whose client's side is
    /// [closed](Self::part).
    pub fn let_go(&self) {
        self.shared.kept.send_modify(|kept| kept.held = 0);
    }

    /// Whether a cut or stall was requested that has not happened yet.
    pub fn is_cut_pending(&self) -> bool {
        [Direction::ToServer, Direction::ToClient]
            .iter()
            .any(|direction| self.shared.lane(*direction).is_cut_pending())
    }

    /// Closes all connections with a reset (RST); they are closed on return.
    pub fn reset_all(&self) {
        count_fault();
        self.end_all(End::Reset);
    }

    /// Closes all connections in the ordinary way (FIN); they are closed on return.
    pub fn close_all(&self) {
        count_fault();
        self.end_all(End::Close);
    }

    /// From now on forgets each connection that was idle for this long, as load balancers do: if the client sends
    /// something on it later, the answer is a reset; if the server sends something, it is lost.
    pub fn forget_after(&self, idle: Duration) {
        count_fault();
        *lock(&self.shared.forgets) = Some(idle);
    }

    /// Refuses new connections by closing the listening sockets. Open connections stay.
    pub fn refuse(&self) {
        count_fault();
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Resets the connections of the member with this id or address, and refuses its new connections until
    /// [`Proxy::admit_all`]. Other members still reach the target.
    pub fn bar(&self, member: &str) {
        count_fault();
        lock(&self.shared.barred).insert(member.to_owned());
        let theirs = |(number, sender): (&u64, &Option<String>)| {
            (sender.as_deref() == Some(member)).then_some(*number)
        };
        let numbers = self.shared.open().iter().filter_map(theirs).collect();
        self.end(End::Reset, numbers);
    }

    /// Accepts connections from all members again.
    pub fn admit_all(&self) {
        lock(&self.shared.barred).clear();
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open().len()
    }

    /// How many bytes arrived so far in `direction`, forwarded or not.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).bytes.load(Ordering::SeqCst)
    }

    /// How many requests clients have sent so far, forwarded or not; in HTTP/2, streams that they opened.
    pub fn requests(&self) -> u64 {
        self.shared.lane(Direction::ToServer).counts().requests
    }

    /// How many messages clients have sent so far, forwarded or not; in HTTP/2, DATA frames that are not empty.
    pub fn messages(&self) -> u64 {
        self.messages_in(Direction::ToServer)
    }

    /// How many messages arrived so far in `direction`.
    pub fn messages_in(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).counts().messages.values().sum()
    }

    /// How many messages arrived so far in `direction`, for each connection (counted from one) and stream.
    pub fn messages_by_stream(&self, direction: Direction) -> BTreeMap<(u64, u32), u64> {
        self.shared.lane(direction).counts().messages.clone()
    }

    fn end_all(&self, end: End) {
        let open = self.shared.open().keys().copied().collect();
        self.end(end, open);
    }

    /// Ends these connections; they are closed on return.
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
            // A panic of the proxy's thread would only hide the failure of the test.
            let _ = thread.join();
        }
    }
}

/// How the proxy knows which server has made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    /// The proxy does not know which server has made a connection.
    Any,
    /// The proxy reads it in a header of the first request: [`member`].
    ByHeader,
    /// The proxy knows the address from which each server connects.
    ByAddress,
}

/// What the proxy's connections share with the `Proxy` itself.
#[derive(Debug)]
struct Shared {
    protocol: Protocol,
    to_server: Lane,
    to_client: Lane,
    accepted: AtomicU64,
    /// The open connections by number, each with the member or address that has made it, if known.
    open: Mutex<BTreeMap<u64, Option<String>>>,
    /// Which connections' requests are held back, and which have lost their client's side.
    kept: watch::Sender<Kept>,
    senders: Senders,
    /// Members or addresses whose connections are refused.
    barred: Mutex<BTreeSet<String>>,
    /// After how long without bytes a connection is forgotten.
    forgets: Mutex<Option<Duration>>,
    end: watch::Sender<Option<Ending>>,
}

/// Ranges of connection numbers: those whose requests are held back, and those whose client's side is closed.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// The first connection whose requests are held back.
    from: u64,
    /// The last connection whose requests are held back.
    held: u64,
    /// All connections up to this number have lost their client's side.
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

    /// Whether this connection, from this member, may go on.
    fn admits(&self, number: u64, sender: Option<String>) -> bool {
        // The connection is listed before the check. A concurrent `bar` either finds it in the list and ends it, or has
        // added the member to `barred` already, so that the check sees it.
        self.open().insert(number, sender.clone());
        sender.is_none_or(|sender| !lock(&self.barred).contains(&sender))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
