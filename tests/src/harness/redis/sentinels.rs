//! Three Sentinels for a master and its replica. A test can cut any of these servers off from the others.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::{Launch, Node, Protocol, Proxy, Scratch, ports::free_address, wait_until};
use super::{READY, Reply, ask};

/// The name under which the Sentinels know the master.
pub const MASTER: &str = "mymaster";
/// The number of Sentinels.
const COUNT: usize = 3;

/// The Sentinels of a [`Redis`](super::Redis).
#[derive(Debug)]
pub struct Sentinels {
    nodes: Vec<Node>,
    links: Vec<Proxy>,
    /// The addresses of those proxies that the Sentinels know as further masters: see [`name`](Self::name).
    named: Mutex<BTreeSet<SocketAddr>>,
}

/// The loopback address from which a node connects to the other servers. Each server has an address of its own, so that
/// a proxy can refuse the connections of one server alone.
pub(super) fn source(index: usize) -> String {
    format!("127.77.0.{}", index + 1)
}

/// The loopback address from which a Sentinel connects to the other servers.
fn sentinel_source(index: usize) -> String {
    source(100 + index)
}

impl Sentinels {
    /// Starts the Sentinels for the master at `master`. If `by_proxy`, they connect to one another through proxies, so
    /// that a test can cut them off. If the master has not answered for `patience_ms`, they consider it down.
    pub(super) fn start(
        scratch: &Scratch,
        master: SocketAddr,
        by_proxy: bool,
        patience_ms: u64,
    ) -> Self {
        let addresses: Vec<_> = (0..COUNT).map(|_| free_address()).collect();
        let link = |address: &SocketAddr| Proxy::by_address(Protocol::Resp, *address);
        let links: Vec<_> = addresses.iter().filter(|_| by_proxy).map(link).collect();
        let nodes = addresses.iter().enumerate().map(|(index, address)| {
            let announced = links.get(index).map_or(*address, Proxy::address);
            let directory = scratch.join(format!("s{index}"));
            std::fs::create_dir_all(&directory).expect("the scratch directory is writable");
            let file = directory.join("sentinel.conf");
            let text = format!(
                "port {}\nbind 127.0.0.1\nbind-source-addr {}\ndir {}\n\
                 sentinel announce-ip 127.0.0.1\nsentinel announce-port {}\n\
                 sentinel monitor {MASTER} {} {} 2\n\
                 sentinel down-after-milliseconds {MASTER} {patience_ms}\n\
                 sentinel failover-timeout {MASTER} 5000\n",
                address.port(),
                sentinel_source(index),
                directory.display(),
                announced.port(),
                master.ip(),
                master.port(),
            );
            std::fs::write(&file, text).expect("the scratch directory is writable");
            let log = scratch.join(format!("s{index}.log"));
            let launch = move || {
                let arguments = [file.as_os_str(), "--sentinel".as_ref()];
                Launch::new("redis-server", &log).clear_env().args(arguments)
            };
            Node::start(format!("s{index}"), *address, launch)
        });
        let sentinels = Self { nodes: nodes.collect(), links, named: Mutex::default() };
        sentinels.wait(|sentinel| sentinels.tell(sentinel, &["PING"]) == Some("PONG".to_owned()));
        sentinels
    }

    /// Waits until each Sentinel knows all other Sentinels, and this number of replicas.
    pub fn wait_settled(&self, replicas: usize) {
        let count =
            |sentinel, what| match ask(self.address(sentinel), None, &["SENTINEL", what, MASTER]) {
                Ok(Reply::List(all)) => all.len(),
                _ => 0,
            };
        self.wait(|sentinel| {
            count(sentinel, "REPLICAS") == replicas && count(sentinel, "SENTINELS") == COUNT - 1
        });
    }

    fn wait(&self, is_so: impl Fn(usize) -> bool) {
        for sentinel in 0..COUNT {
            let log = || self.nodes[sentinel].log();
            assert!(wait_until(3 * READY, || is_so(sentinel)), "not ready: {}", log());
        }
    }

    /// The address at which this Sentinel serves clients.
    pub fn address(&self, sentinel: usize) -> SocketAddr {
        self.nodes[sentinel].address()
    }

    /// The Sentinels' processes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The addresses of all Sentinels, as the authority of a URL.
    pub fn authority(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        addresses.join(",")
    }

    /// Sends a command to a Sentinel, and returns the answer's text; `None` if the Sentinel refuses or does not answer.
    pub fn tell(&self, sentinel: usize, command: &[&str]) -> Option<String> {
        ask(self.address(sentinel), None, command).ok()?.text()
    }

    /// Makes the Sentinels know a proxy in front of the master as a second master, with a name of its own. For this
    /// name they return the proxy's address to clients. The proxy refuses the connections of the Sentinels themselves,
    /// so that a test which counts at the proxy counts only clients. The Sentinels consider this second master down
    /// only after an hour.
    pub(super) fn name(&self, proxy: &Proxy) {
        (0..COUNT).for_each(|sentinel| proxy.bar(&sentinel_source(sentinel)));
        let port = proxy.address().port().to_string();
        let name = format!("at-{port}");
        for sentinel in 0..COUNT {
            let told =
                self.tell(sentinel, &["SENTINEL", "MONITOR", &name, "127.0.0.1", &port, "2"]);
            assert_eq!(told.as_deref(), Some("OK"));
            self.tell(sentinel, &["SENTINEL", "SET", &name, "down-after-milliseconds", "3600000"]);
        }
        self.named().insert(proxy.address());
    }

    /// What a URL has to name so that clients reach `authority` through the Sentinels: the authority of the Sentinels,
    /// and the master's name. If `authority` is the address of a [named](Self::name) proxy, the master's name is the
    /// name of this proxy. Otherwise `authority` is taken as the authority of the Sentinels themselves.
    pub(super) fn lead_to(&self, authority: &str) -> (String, String) {
        match authority.parse().ok().filter(|proxy: &SocketAddr| self.named().contains(proxy)) {
            Some(proxy) => (self.authority(), format!("at-{}", proxy.port())),
            None => (authority.to_owned(), MASTER.to_owned()),
        }
    }

    fn named(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the servers of one group off from all others. `nodes` are the proxies in front of the Redis nodes. `first`
    /// is the group: the indices of its nodes and of its Sentinels.
    pub(super) fn part(&self, nodes: &[Proxy], first: (&[usize], &[usize])) {
        let sources = |is_in: bool| {
            let node =
                (0..nodes.len()).filter(move |node| first.0.contains(node) == is_in).map(source);
            let sentinel = (0..COUNT).filter(move |sentinel| first.1.contains(sentinel) == is_in);
            node.chain(sentinel.map(sentinel_source)).collect::<Vec<_>>()
        };
        let bar = |link: &Proxy, is_in: bool| {
            sources(!is_in).iter().for_each(|source| link.bar(source));
        };
        nodes.iter().enumerate().for_each(|(node, link)| bar(link, first.0.contains(&node)));
        let links = self.links.iter().enumerate();
        links.for_each(|(sentinel, link)| bar(link, first.1.contains(&sentinel)));
    }

    /// Ends all partitions: all Sentinels can reach one another again.
    pub(super) fn rejoin(&self) {
        self.links.iter().for_each(Proxy::admit_all);
    }
}
