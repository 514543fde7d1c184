//! ZooKeeper servers: one node or an ensemble, on loopback, with TLS if a test wants it.
//!
//! The jars are Debian's (`zookeeper`, 3.8). If they are not installed, the test fails; it is not skipped. A tick is
//! only 200 ms, so that the effects of a fault are over within a test. Each node with TLS also serves clients without
//! TLS on a second port, so that the harness can always ask it, whatever certificates clients need.

mod node;
mod options;
mod server;
mod wire;

pub use options::ZookeeperOptions;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use super::room::{Places, Room};
use super::{Identity, Mode, Node, Proxy, Scratch, ports::free_address, wait_until};
use node::{Addresses, Link};
use wire::{Wire, code, right};

/// How long the servers may take until they are ready. Each is a Java virtual machine, which starts slowly.
const READY: Duration = Duration::from_secs(60);
/// Where Debian installs the jars.
const JARS: &str = "/usr/share/java";

/// Limits the nodes that run at a time to three ensembles. Each node is a Java virtual machine, and two processors
/// cannot start many of these at the same time.
static ROOM: Room = Room::new(9);

/// A running ZooKeeper. On drop, its processes are killed and its data are removed.
#[derive(Debug)]
pub struct Zookeeper {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    nodes: Vec<Member>,
    /// The proxies by which each node connects to each other node. Empty unless [`ZookeeperOptions::peers_by_proxy`]
    /// was called.
    links: Vec<Link>,
    options: ZookeeperOptions,
    /// Whether a server has [kept](cut_off) a client's connection after the session had ended.
    has_kept: Arc<AtomicBool>,
    scratch: Scratch,
    _places: Places,
}

#[derive(Debug)]
struct Member {
    node: Node,
    /// The address at which the node serves clients without TLS.
    plain: SocketAddr,
}

/// Closes the connections of a session that has ended, in the background, as a server does when a session expires by itself. If the
/// client reconnects in the very moment in which the harness ends its session, the server may keep that connection open, and answers
/// nothing on it.
///
/// Some of these connections cannot be closed; then `has_kept` is set. When the harness resumes a session, the server first closes the
/// client's connection, and only then notes which connection the session has now (`ZooKeeperServer.processConnectRequest` and
/// `NIOServerCnxn.setSessionId`, 3.8). If the client has reconnected in between, the server replaces its connection by that of the
/// harness in its notes. It does not find it again, neither when the session ends nor when somebody asks for the session anew.
fn cut_off(servers: Vec<SocketAddr>, session: i64, has_kept: Arc<AtomicBool>) {
    let mark = format!("sid=0x{session:x},");
    let cut = move || {
        let mut closed = BTreeSet::new();
        for _ in 0..30 {
            for server in &servers {
                let connections = wire::four_letters(*server, "cons").unwrap_or_default();
                // Each line begins with the address of the client, and then `[`.
                let ours = connections.lines().filter(|line| line.contains(&mark));
                let ours = ours.filter_map(|line| line.split_once('['));
                let ours: Vec<_> = ours.map(|(client, _)| client.trim().to_owned()).collect();
                if ours.iter().any(|client| closed.contains(client)) {
                    has_kept.store(true, Ordering::SeqCst);
                }
                // A server closes the old connection of a session for which a client asks anew, and answers afterwards.
                if !ours.is_empty()
                    && let Err(error) = Wire::resume(*server, session)
                    && error.kind() == ErrorKind::NotFound
                {
                    closed.extend(ours);
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    };
    thread::spawn(cut);
}

impl Zookeeper {
    /// One node, without TLS.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// An ensemble of three nodes, without TLS.
    pub fn three() -> Self {
        Self::options().nodes(3).start()
    }

    /// The options with their default values, to be changed before the servers are started.
    pub fn options() -> ZookeeperOptions {
        ZookeeperOptions::default()
    }

    /// Starts the servers that `options` describe. They are ready when this returns.
    ///
    /// # Panics
    ///
    /// When ZooKeeper is not installed or does not become ready.
    fn start(options: ZookeeperOptions) -> Self {
        require_jars();
        let places = ROOM.take(options.nodes);
        let scratch = Scratch::new("zookeeper");
        let address = |_| {
            let secure = options.tls.is_some().then(free_address);
            let (client, quorum, election) = (free_address(), free_address(), free_address());
            Addresses { client, secure, quorum, election }
        };
        let addresses: Vec<_> = (0..options.nodes).map(address).collect();
        let mut links = Vec::new();
        for from in (0..options.nodes).filter(|_| options.peers_by_proxy) {
            for to in (0..options.nodes).filter(|to| *to != from) {
                let proxy = Proxy::start(addresses[to].quorum);
                links.push(Link { from, to, proxy, is_cut: AtomicBool::new(false) });
            }
        }
        let start = |index: usize| {
            let own = &addresses[index];
            let launch = node::launch(index, &addresses, &links, &options, &scratch);
            let address = own.secure.unwrap_or(own.client);
            Member { node: Node::start(format!("n{index}"), address, launch), plain: own.client }
        };
        let nodes = (0..options.nodes).map(start).collect();
        let has_kept = Arc::default();
        let zookeeper = Self { nodes, links, options, has_kept, scratch, _places: places };
        zookeeper.await_ready();
        zookeeper
    }

    /// The directory in which the nodes keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// The path of the file that has a node's certificate and key, if clients connect by TLS.
    pub fn key_store(&self, index: usize) -> PathBuf {
        node::key_store(&self.scratch, index)
    }

    /// Writes this certificate and key to the file `store`, in the form in which ZooKeeper reads them.
    ///
    /// # Panics
    ///
    /// When the key store cannot be written.
    pub fn write_key_store(store: &Path, identity: &Identity) {
        let parts = [&identity.key, &identity.certificate];
        let parts = parts.map(|part| std::fs::read_to_string(part).expect("it was written"));
        std::fs::write(store, parts.concat()).expect("the directory is writable");
    }

    /// Whether clients connect by TLS.
    pub fn is_secure(&self) -> bool {
        self.options.tls.is_some()
    }

    /// The answer of a node to one of ZooKeeper's four-letter commands; `None` if the node does not run or does not
    /// answer.
    pub fn ask(&self, index: usize, word: &str) -> Option<String> {
        let member = &self.nodes[index];
        if !member.node.is_running() {
            return None;
        }
        wire::four_letters(member.plain, word).ok()
    }

    /// The paths of all grandchildren of a node, sorted. This sends one request for each child, and none for a
    /// grandchild.
    pub fn grandchildren(&self, path: &str) -> Vec<String> {
        let mut wire = self.wire();
        let mut found = Vec::new();
        for child in wire.children(path).unwrap_or_default() {
            let child = format!("{path}/{child}");
            let names = wire.children(&child).unwrap_or_default();
            found.extend(names.iter().map(|name| format!("{child}/{name}")));
        }
        found.sort();
        found
    }

    /// The names of a node's children; empty if the node does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        self.wire().children(path).unwrap_or_default()
    }

    /// The data of a node, the number of the transaction that created it, and the session that owns it.
    pub fn look(&self, path: &str) -> Option<(Vec<u8>, u64, i64)> {
        self.wire().data(path)
    }

    /// Creates a persistent node that anybody may change, as an administrator might do who does not know the library.
    ///
    /// # Panics
    ///
    /// If the node cannot be created.
    pub fn create(&self, path: &str, data: &[u8]) {
        assert_eq!(self.wire().create(path, data), code::OK, "{path}");
    }

    /// Creates many persistent nodes that have no data.
    pub fn create_all(&self, paths: impl IntoIterator<Item = String>) {
        let mut wire = self.wire();
        for path in paths {
            assert_eq!(wire.create(&path, b""), code::OK, "{path}");
        }
    }

    /// Transfers the rights on a node from one user to another. Both are written as `user:password`.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn give(&self, path: &str, from: &str, to: &str) {
        for (user, to_anyone) in [(from, true), (to, false)] {
            let mut wire = self.wire();
            assert_eq!(
                (wire.be(user), wire.allow(path, to_anyone)),
                (code::OK, code::OK),
                "{path}"
            );
        }
    }

    /// Gives everybody all rights on a node except the one named `missing`: `read`, `write`, `create` or `delete`.
    /// Without `missing`, gives all rights.
    ///
    /// # Panics
    ///
    /// If the server refuses it, or if there is no right of this name.
    pub fn permit_all_but(&self, path: &str, missing: Option<&str>) {
        let of = |name: &str| right::BY_NAME.iter().find(|(known, _)| *known == name);
        let missing = missing.map_or(0, |name| of(name).expect("there is such a right").1);
        let rights = right::ALL & !missing | right::ADMIN;
        assert_eq!(self.wire().permit(path, rights), code::OK, "{path}");
    }

    /// Removes a node. Returns false if it did not exist.
    pub fn delete(&self, path: &str) -> bool {
        self.wire().delete(path) == code::OK
    }

    /// Ends the session with this id, by a connection of our own that resumes the session. Returns false if the session
    /// did not exist.
    pub fn close_session(&self, session: i64) -> bool {
        let address = self.plain();
        let mut was_there = false;
        // The session's client reconnects at once. If that moves the session away from our connection before we have
        // closed the session, `wait_until` calls the closure again, which resumes the session once more.
        let closed = wait_until(READY, || match Wire::resume(address, session) {
            Ok(mut wire) => {
                was_there = true;
                wire.close()
            }
            Err(error) => error.kind() == ErrorKind::NotFound,
        });
        let running = self.nodes.iter().filter(|member| member.node.is_running());
        let running = running.map(|member| member.plain).collect();
        cut_off(running, session, Arc::clone(&self.has_kept));
        closed && was_there
    }

    /// Drops all packets between a follower and the other nodes, until [`rejoin`](super::Server::rejoin). No connection
    /// breaks. So the follower goes on answering reads of its clients until `syncLimit` is over.
    pub fn silence(&self, index: usize) {
        for link in self.links_of(index) {
            link.proxy.set_both(Mode::Blackhole);
            link.is_cut.store(true, Ordering::SeqCst);
        }
    }

    /// The proxies between this node and the others, in both directions.
    fn links_of(&self, index: usize) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.from == index || link.to == index)
    }

    /// Whether the ensemble can commit a write. This opens a session, which is a write.
    pub fn commits(&self) -> bool {
        Wire::open(self.plain()).is_ok()
    }

    /// Waits until each node whose process runs serves clients.
    ///
    /// # Panics
    ///
    /// If a node does not serve clients in time.
    pub fn await_ready(&self) {
        let start = Instant::now();
        for (index, member) in self.nodes.iter().enumerate() {
            if !member.node.is_running() {
                continue;
            }
            let left = READY.saturating_sub(start.elapsed());
            let serves = || {
                let address = member.node.address();
                self.mode(index).is_some() && std::net::TcpStream::connect(address).is_ok()
            };
            let is_over = || serves() || !member.node.is_running();
            let ready = wait_until(left, is_over);
            let log = member.node.log();
            assert!(
                ready && member.node.is_running(),
                "ZooKeeper node {index} is not ready:\n{log}"
            );
        }
    }

    /// The mode of a node: `standalone`, `leader` or `follower`. `None` while the node does not serve clients.
    pub fn mode(&self, index: usize) -> Option<String> {
        let answer = self.ask(index, "srvr")?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    fn wire(&self) -> Wire {
        let mut last = None;
        let connected = wait_until(READY, || {
            last = Wire::open(self.plain()).ok();
            last.is_some()
        });
        assert!(connected, "no node answers");
        last.expect("it is connected")
    }

    /// The plain-text address of a running node: that of the leader, if there is one.
    fn plain(&self) -> SocketAddr {
        let running = |member: &&Member| member.node.is_running();
        let leads = |index: &usize| self.mode(*index).is_some_and(|mode| mode == "leader");
        let leader = (0..self.nodes.len()).filter(|_| self.nodes.len() > 1).find(leads);
        let leader = leader.map(|index| &self.nodes[index]);
        let member = leader.or_else(|| self.nodes.iter().find(running)).unwrap_or(&self.nodes[0]);
        member.plain
    }
}

/// Fails the test if a jar is not installed. Prints the version once per test process.
fn require_jars() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once_force(|_| {
        let jar = std::fs::canonicalize(format!("{JARS}/zookeeper.jar")).unwrap_or_else(|_| {
            panic!(
                "ZooKeeper is not installed: run `tests/run`, which installs it, \
                 or `apt-get install zookeeper default-jre-headless`"
            )
        });
        eprintln!("{}", jar.file_name().unwrap_or_default().display());
    });
}
