//! etcd servers: one node or a cluster, on loopback, with TLS and users if a test wants them.
//!
//! The binaries are Debian's (`etcd-server` and `etcd-client`, 3.4). If they are not installed, the test fails; it is
//! not skipped. An election takes only 500 ms, so that the effects of a fault are over within a test. Each node also
//! serves `/health` and `/metrics` on a third port, without TLS and without users. So the harness can always ask it,
//! whatever its client port demands.

mod admin;
mod node;
mod options;
mod server;
mod settings;

pub use node::Node;
pub use options::{EtcdOptions, Tls};

use std::{
    collections::BTreeMap,
    path::Path,
    process::Command,
    sync::Once,
    time::{Duration, Instant},
};

use super::restless::Restless;
use super::{Node as Process, Proxy, Scratch, ports::free_address, wait_until};
use node::Addresses;

/// The name of the administrator, if authentication is on.
pub const ROOT: &str = "root";
/// The administrator's password. It is an unusual text, so that a test can search logs for it.
pub const ROOT_PASSWORD: &str = "root-canary-9f2b";
/// The name of a user who has rights on one prefix only, if authentication is on.
pub const USER: &str = super::certs::CLIENT_NAME;
/// The password of [`USER`]. It has characters that have to be escaped in a URL: see [`Etcd::user_information`].
pub const USER_PASSWORD: &str = "user-canary-71@c/e%d";
/// The password of [`USER`], escaped for a URL.
const USER_PASSWORD_IN_URL: &str = "user-canary-71%40c%2Fe%25d";

/// How long the servers may take until they are ready.
const READY: Duration = Duration::from_secs(10);

/// A running etcd. On drop, its processes are killed and its data are removed.
#[derive(Debug)]
pub struct Etcd {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    /// A thread that changes a right each second, if the test's setting asks for it.
    restless: Option<Restless>,
    /// The `grpc-proxy` to which clients connect, if there is one.
    front: Option<Process>,
    nodes: Vec<Node>,
    /// For each node, the proxy in front of its peer port. Empty unless [`EtcdOptions::peers_by_proxy`] was called.
    peer_links: Vec<Proxy>,
    /// For each node, its id as a member of the cluster. Empty unless the nodes are connected by proxies, which need
    /// the ids.
    members: Vec<String>,
    options: EtcdOptions,
    users_on: bool,
    scratch: Scratch,
}

impl Etcd {
    /// One node, without TLS or users.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// A cluster of three nodes, without TLS or users.
    pub fn three() -> Self {
        Self::options().nodes(3).start()
    }

    /// The options with their default values, to be changed before the servers are started.
    pub fn options() -> EtcdOptions {
        EtcdOptions::default()
    }

    /// Starts the servers that `options` describe. They are ready when this returns.
    ///
    /// # Panics
    ///
    /// When etcd is not installed or does not become ready.
    fn start(options: EtcdOptions) -> Self {
        require_binaries();
        let scratch = Scratch::new("etcd");
        let mut addresses: Vec<_> = (0..options.nodes)
            .map(|_| {
                let peer = free_address();
                let (client, metrics) = (free_address(), free_address());
                Addresses { client, peer, advertised: peer, metrics }
            })
            .collect();
        let mut peer_links = Vec::new();
        for node in addresses.iter_mut().filter(|_| options.peers_by_proxy) {
            let link = Proxy::between_members(node.peer);
            node.advertised = link.address();
            peer_links.push(link);
        }
        let nodes = (0..options.nodes)
            .map(|index| Node::start(index, &addresses, &options, &scratch))
            .collect();
        let members = Vec::new();
        let (restless, front, users_on) = (None, None, false);
        let mut etcd =
            Self { restless, front, nodes, peer_links, members, options, users_on, scratch };
        etcd.wait_ready();
        if etcd.options.peers_by_proxy {
            etcd.members = etcd.member_ids();
        }
        if etcd.options.user_prefix.is_some() {
            etcd.enable_users();
        }
        etcd.restless = etcd.options.is_restless.then(|| settings::change_rights(&etcd));
        etcd.front = etcd.options.by_grpc_proxy.then(|| settings::start_front(&etcd));
        etcd
    }

    /// The node at `index`, counted from zero.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The directory in which the nodes keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Cuts a node off from all other nodes, in both directions, until [`Etcd::rejoin`]. Clients can still reach the
    /// node.
    ///
    /// The node's connections with other nodes are reset, and new ones are refused.
    ///
    /// # Panics
    ///
    /// Without [`EtcdOptions::peers_by_proxy`].
    pub fn isolate(&self, index: usize) {
        assert!(!self.peer_links.is_empty(), "the nodes are connected directly");
        for other in (0..self.nodes.len()).filter(|other| *other != index) {
            self.peer_links[other].bar(&self.members[index]);
            self.peer_links[index].bar(&self.members[other]);
        }
    }

    /// Ends all isolation: all nodes can reach one another again.
    pub fn rejoin(&self) {
        self.peer_links.iter().for_each(Proxy::admit_all);
    }

    /// The URLs at which the nodes serve clients, `http://127.0.0.1:…` or `https://…`.
    pub fn client_urls(&self) -> Vec<String> {
        let scheme = match self.options.tls {
            Some(_) => "https",
            None => "http",
        };
        self.nodes.iter().map(|node| format!("{scheme}://{}", node.address())).collect()
    }

    /// The addresses of all nodes as the authority of a URL: `127.0.0.1:p1,127.0.0.1:p2`.
    pub fn authority(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        nodes.join(",")
    }

    /// The user with few rights, as it is written before the authority of a URL: `name:password@`, escaped.
    pub fn user_information() -> String {
        format!("{USER}:{USER_PASSWORD_IN_URL}@")
    }

    /// Waits until each node whose process runs answers a linearizable read.
    ///
    /// # Panics
    ///
    /// If a node answers none within ten seconds.
    pub fn wait_ready(&self) {
        let start = Instant::now();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let left = READY.saturating_sub(start.elapsed());
            let ready = wait_until(left, || node.is_healthy() || !node.is_running());
            assert!(
                ready && node.is_running(),
                "etcd node {} is not ready:\n{}",
                node.name(),
                node.log(),
            );
        }
    }

    /// The index of the node that believes that it is the leader. `None` if there is no leader, or if the leader is
    /// paused and cannot be asked.
    ///
    /// A leader that is cut off from the others believes that it still leads until it notices.
    pub fn leader_index(&self) -> Option<usize> {
        self.nodes.iter().position(Node::is_leader)
    }

    /// How many calls of each gRPC method the running nodes have begun to serve, for instance of `Txn`, `LeaseGrant` or
    /// `Watch`.
    ///
    /// A stream counts as one call. Calls by [`Etcd::etcdctl`] are included. A node that restarts begins again at zero.
    pub fn request_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (method, count) in self.nodes.iter().flat_map(Node::request_counts) {
            *counts.entry(method).or_default() += count;
        }
        counts
    }
}

/// Fails the test if a binary is not installed. Prints the versions once per test process.
fn require_binaries() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once_force(|_| {
        for (binary, argument) in [("etcd", "--version"), ("etcdctl", "version")] {
            let version = Command::new(binary).arg(argument).output();
            let Ok(version) = version else {
                panic!(
                    "`{binary}` is not installed: run `tests/run`, which installs it, \
                     or `apt-get install etcd-server etcd-client`"
                );
            };
            let version = String::from_utf8_lossy(&version.stdout).into_owned();
            eprintln!("{}", version.lines().next().unwrap_or(binary));
        }
    });
}
