//! A TCP proxy that causes network faults between a client and a server.
//!
//! The proxy has its own thread and runtime, so it goes on if a test blocks its executor. Its methods block the caller
//! only for a moment. Each direction has a [`Mode`], which can be changed at any time and applies to all connections.
//! The proxy can cut a connection before or after a chosen byte. It can also cut it before or after a chosen frame or
//! message, if it knows the [`Protocol`] and there is no TLS.
//!
//! If the proxy drops bytes, the kernel has already acknowledged them to the sender, because the proxy has read them.
//! Only a firewall or a network namespace can lose a packet before any kernel has acknowledged it.

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

/// The direction in which bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What the proxy does with the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The bytes are forwarded at once.
    #[default]
    Pass,
    /// The bytes are forwarded in order, each byte this long after it arrived. The delay does not limit the throughput.
    Delay(Duration),
    /// The bytes are forwarded in writes of one byte.
    Dribble,
    /// The bytes are kept back, and forwarded when the mode changes. For the two sides this looks like an outage that
    /// TCP survives by retransmitting.
    Stall,
    /// When the next bytes arrive, the proxy closes the receiver's side (FIN). It drops these bytes and all that follow
    /// in this direction, but forwards the other direction. New connections are treated in the same way.
    HalfClose,
    /// The bytes are read and dropped. A connection that has lost bytes forwards nothing more in this direction, even
    /// after the mode has changed, because its stream has a hole. After the mode has changed, new connections are
    /// forwarded.
    Blackhole,
}

/// What a cut counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Frames of any type; in HTTP/2, SETTINGS and PING are frames too.
    Frames,
    /// Frames that begin a request, so only in the direction to the server; in HTTP/2, HEADERS frames that open a
    /// stream.
    Requests,
    /// Frames that carry a message; in HTTP/2, DATA frames that are not empty. With gRPC, each small message is one
    /// such frame.
    Messages,
}

/// A running proxy. On drop, its connections are reset.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Forwards a free loopback port to `target`. The target has to speak HTTP/2, unless the test does not count
    /// frames.
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

    /// Forwards to several servers. The proxy listens at one loopback address, on the same ports as the servers. So if
    /// a server redirects a client to another port of the same host, the client stays with the proxy.
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
        // The address is not 127.0.0.1, because there the servers themselves have these ports.
        let host = Ipv4Addr::new(127, 128 | high, middle, low);
        let routes: Vec<_> =
            targets.iter().map(|target| ((host, target.port()).into(), *target)).collect();
        Self::new(protocol, &routes, Senders::Any)
    }

    /// Forwards connections between servers. Each server has to connect from a loopback address of its own, so that the
    /// proxy can [refuse](Self::bar) the connections of one server.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn by_address(protocol: Protocol, target: SocketAddr) -> Self {
        Self::new(protocol, &[(free_address(), target)], Senders::ByAddress)
    }

    /// Forwards connections between members of an etcd cluster. The proxy finds out which member has made a connection,
    /// so that it can [refuse](Self::bar) the connections of one member.
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

    /// Ends all faults: forwards in both directions, accepts connections, delivers the requests that it has held, and
    /// drops cuts that have not happened yet.
    pub fn heal(&self) {
        self.let_go();
        self.shared.lane(Direction::ToServer).disarm();
        self.shared.lane(Direction::ToClient).disarm();
        self.set_both(Mode::Pass);
        self.accept();
    }

    /// Closes a connection in both directions as soon as `count` units have been forwarded in `direction`. Units are
    /// counted from now on, over all connections together; the connection that forwards the last one is closed. Happens
    /// only once.
    pub fn cut_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::End);
    }

    /// Like [`Proxy::cut_after`], but the last of the `count` units is not forwarded: the sender has sent it, and the
    /// receiver never gets it.
    ///
    /// In the direction to the client, this loses the answer to a request that the server has carried out.
    pub fn cut_before(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, false, Then::End);
    }

    /// Forwards `count` units in `direction`, counted from now on over all connections together. After that, keeps back
    /// what follows, as [`Mode::Stall`] does, until a mode is set. Happens only once.
    pub fn stall_after(&self, direction: Direction, unit: Unit, count: u64) {
        self.arm(direction, unit, count, true, Then::Stall);
    }

    fn arm(&self, direction: Direction, unit: Unit, count: u64, is_after: bool, then: Then) {
        count_fault();
        self.shared.lane(direction).arm(unit, count, is_after, then);
    }

    /// From now on keeps back what clients send, on all connections, until [`let_go`](Self::let_go) delivers it. What
    /// the server sends is still forwarded.
    pub fn hold(&self) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (0, u64::MAX));
    }

    /// Keeps back what the client sends on one connection; the first connection has number 1. The other connections are
    /// forwarded.
    pub fn hold_one(&self, number: u64) {
        self.shared.kept.send_modify(|kept| (kept.from, kept.held) = (number, number));
    }

    /// From now on drops what the server sends on this stream of this connection, both as
    /// [`messages_by_stream`](Self::messages_by_stream) counts them. All else is forwarded.
    pub fn drop_stream(&self, connection: u64, stream: u32) {
        count_fault();
        *lock(&self.shared.dropped) = Some((connection, stream));
    }

    /// Closes the clients' side of all connections, without the server noticing it. Requests that were
    /// [held](Self::hold) on them are not lost. Requests on new connections are forwarded at once.
    pub fn part(&self) {
        let last = self.connections();
        self.shared.kept.send_replace(Kept { from: 0, held: last, parted: last });
    }

    /// Delivers the requests that were [held](Self::hold), also those of connections whose client's side was
    /// [closed](Self::part).
    pub fn let_go(&self) {
        self.shared.kept.send_modify(|kept| kept.held = 0);
    }

    /// Whether a cut or a stall was asked for and has not happened yet.
    pub fn is_cut_pending(&self) -> bool {
        [Direction::ToServer, Direction::ToClient]
            .iter()
            .any(|direction| self.shared.lane(*direction).is_cut_pending())
    }

    /// Ends all connections with a RST. They are closed when this returns.
    pub fn reset_all(&self) {
        count_fault();
        self.end_all(End::Reset);
    }

    /// Ends all connections in the ordinary way, with a FIN. They are closed when this returns.
    pub fn close_all(&self) {
        count_fault();
        self.end_all(End::Close);
    }

    /// From now on forgets each connection that was idle for this long, as load balancers do. If the client later sends
    /// something on such a connection, it gets a RST. If the server sends something, it is lost.
    pub fn forget_after(&self, idle: Duration) {
        count_fault();
        *lock(&self.shared.forgets) = Some(idle);
    }

    /// Refuses new connections, by closing the listening sockets. Open connections stay.
    pub fn refuse(&self) {
        count_fault();
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Resets the connections that the member with this id or address has made, and refuses its new ones until
    /// [`Proxy::admit_all`]. Other members can still reach the target.
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

    /// How many connections the proxy has accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open().len()
    }

    /// How many bytes have arrived so far in `direction`, whether or not they were forwarded.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).bytes.load(Ordering::SeqCst)
    }

    /// How many requests clients have sent so far, whether or not they were forwarded. In HTTP/2 this is the number of
    /// streams that clients have opened.
    pub fn requests(&self) -> u64 {
        self.shared.lane(Direction::ToServer).counts().requests
    }

    /// How many messages clients have sent so far, whether or not they were forwarded. In HTTP/2 these are DATA frames
    /// that are not empty.
    pub fn messages(&self) -> u64 {
        self.messages_in(Direction::ToServer)
    }

    /// How many messages have arrived so far in `direction`.
    pub fn messages_in(&self, direction: Direction) -> u64 {
        self.shared.lane(direction).counts().messages.values().sum()
    }

    /// How many messages have arrived so far in `direction`, for each connection (counted from one) and each stream in
    /// it.
    pub fn messages_by_stream(&self, direction: Direction) -> BTreeMap<(u64, u32), u64> {
        self.shared.lane(direction).counts().messages.clone()
    }

    fn end_all(&self, end: End) {
        let open = self.shared.open().keys().copied().collect();
        self.end(end, open);
    }

    /// Ends the connections with these numbers. They are closed when this returns.
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
            // If the proxy's thread has panicked, `join` returns an error. It is ignored, because a second panic here
            // would only hide why the test failed.
            let _ = thread.join();
        }
    }
}

/// How the proxy finds out which server has made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    /// The proxy does not find it out.
    Any,
    /// The proxy reads it from a header of the first request: [`member`].
    ByHeader,
    /// By the address from which the connection comes: each server has one of its own.
    ByAddress,
}

/// The state that the proxy's connections share with the `Proxy` itself.
#[derive(Debug)]
struct Shared {
    protocol: Protocol,
    to_server: Lane,
    to_client: Lane,
    accepted: AtomicU64,
    /// The open connections by number, each with the member or address that has made it, if that is known.
    open: Mutex<BTreeMap<u64, Option<String>>>,
    /// Which connections have their requests held back, and which have had their client's side closed.
    kept: watch::Sender<Kept>,
    senders: Senders,
    /// The members or addresses whose connections are refused.
    barred: Mutex<BTreeSet<String>>,
    /// If a connection was idle for longer than this, the proxy forgets it.
    forgets: Mutex<Option<Duration>>,
    /// The connection and the stream on which what the server sends is dropped.
    dropped: Mutex<Option<(u64, u32)>>,
    end: watch::Sender<Option<Ending>>,
}

/// Ranges of connections, by their numbers: those whose requests are held back, and those whose client's side is
/// closed.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// The first connection whose requests are held back, if there are any.
    from: u64,
    /// The last connection whose requests are held back; 0 if no requests are held back.
    held: u64,
    /// All connections up to this number have had their client's side closed.
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
            dropped: Mutex::default(),
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

    /// Puts the connection in the list with the member that has made it. Returns false if this member's connections are
    /// refused.
    fn admits(&self, number: u64, sender: Option<String>) -> bool {
        // The connection is put in the list before the check, and `bar` adds the member to `barred` before it reads the
        // list. So if both happen at the same time, either `bar` finds the connection in the list and ends it, or the
        // check finds the member in `barred`.
        self.open().insert(number, sender.clone());
        sender.is_none_or(|sender| !lock(&self.barred).contains(&sender))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
