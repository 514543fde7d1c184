//! Redis servers: one, a master with replicas, or a cluster, on loopback, with TLS and users if a test wants them.
//!
//! The binary is Debian's (`redis-server`, 7.0). If it is not installed, the test fails; it is not skipped. By default,
//! a server syncs each write to its append-only file before it acknowledges the write, so that a restart loses no
//! acknowledged write.

mod cluster;
mod resp;
mod sentinels;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use resp::{Operator, Reply, ask};
pub use sentinels::{MASTER, Sentinels};

use super::restless::Restless;
use super::{
    Certificates, Identity, Launch, Node, Protocol, Proxy, Scratch,
    ports::{free_address, free_port},
    wait_until,
};
use cluster::Cluster;

/// How long the servers may take until they are ready.
const READY: Duration = Duration::from_secs(10);

/// How to start a [`Redis`].
#[derive(Clone, Debug)]
pub struct RedisOptions {
    nodes: usize,
    is_durable: bool,
    also_at: Option<String>,
    tls: Option<(SocketAddr, Vec<String>)>,
    socket: bool,
    flags: Vec<String>,
    environment: Vec<(String, PathBuf)>,
    /// If there are Sentinels: when the master has not answered for this many milliseconds, they consider it down.
    sentinels: Option<u64>,
    /// Whether nodes and Sentinels connect to one another only through proxies, so that a test can separate them.
    are_apart: bool,
    /// How many masters the cluster has; `None` if the servers are no cluster.
    masters: Option<usize>,
    is_restless: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            is_durable: true,
            also_at: None,
            tls: None,
            socket: false,
            flags: Vec::new(),
            environment: Vec::new(),
            sentinels: None,
            are_apart: false,
            masters: None,
            is_restless: false,
        }
    }
}

impl RedisOptions {
    /// Starts this number of nodes. The first one is the master, and the others are its replicas.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Adds three Sentinels: see [`Redis::sentinels`]. If the master has not answered for `patience`, they consider it
    /// down.
    pub fn sentinels(mut self, patience: Duration) -> Self {
        self.sentinels = Some(patience.as_millis() as u64);
        self
    }

    /// Makes nodes and Sentinels connect to one another only through proxies, so that a test can
    /// [separate](Redis::part) them.
    pub fn apart(mut self) -> Self {
        self.are_apart = true;
        self
    }

    /// Makes the nodes a cluster. This number of them are masters, and the others are replicas of these. When a node
    /// redirects a client to another node, it names only the port and no host, so that the client stays with the proxy
    /// to which it has connected.
    pub fn cluster(mut self, masters: usize) -> Self {
        self.masters = Some(masters);
        self
    }

    /// Applies one of the settings in which all checks have to pass. The empty string changes nothing.
    ///
    /// * `sentinels`: three Sentinels, and a master that refuses writes while its replica is not connected. The
    ///   Sentinels never promote the replica.
    /// * `cluster`: three masters. Each second, the slots of all namespaces that are in use move to the next master.
    ///   The URL names only one node.
    ///
    /// # Panics
    ///
    /// If there is no setting of this name.
    pub fn in_setting(self, setting: &str) -> Self {
        match setting {
            "" => self,
            "sentinels" => self
                .nodes(2)
                .sentinels(Duration::from_secs(3_600))
                .flag("min-replicas-to-write", "1")
                .flag("min-replicas-max-lag", "1"),
            "cluster" => Self { is_restless: true, ..self.nodes(3).cluster(3) },
            _ => panic!("Redis has no setting {setting:?}"),
        }
    }

    /// Makes the servers keep their data only in memory, so that a restart loses everything.
    pub fn forgetful(mut self) -> Self {
        self.is_durable = false;
        self
    }

    /// Also serves clients by TLS, at another address, with the certificate `shown`. The files of the certificates must
    /// outlive the server.
    pub fn tls(
        mut self,
        certificates: &Certificates,
        shown: &Identity,
        client_required: bool,
    ) -> Self {
        let address = free_address();
        let required = if client_required { "yes" } else { "no" };
        let flags = [
            ("--tls-port", address.port().to_string()),
            ("--tls-cert-file", shown.certificate.display().to_string()),
            ("--tls-key-file", shown.key.display().to_string()),
            ("--tls-ca-cert-file", certificates.authority.display().to_string()),
            ("--tls-auth-clients", required.to_owned()),
        ];
        let flags = flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        self.tls = Some((address, flags));
        self
    }

    /// Also serves clients at a Unix socket in its directory: [`Redis::socket`].
    pub fn socket(mut self) -> Self {
        self.socket = true;
        self
    }

    /// Also serves clients at this address, on the same ports. A test that runs in a network namespace of its own needs
    /// this.
    pub fn also_at(mut self, address: impl Into<String>) -> Self {
        self.also_at = Some(address.into());
        self
    }

    /// Adds a flag to the servers' command line: `--name value`.
    pub fn flag(mut self, name: &str, value: impl Into<String>) -> Self {
        self.flags.extend([format!("--{name}"), value.into()]);
        self
    }

    /// Sets an environment variable of the servers to a path.
    pub fn environment(mut self, name: &str, path: &Path) -> Self {
        self.environment.push((name.to_owned(), path.to_owned()));
        self
    }

    /// Starts the servers; they are ready on return.
    ///
    /// # Panics
    ///
    /// When redis-server is not installed or does not become ready.
    pub fn start(self) -> Redis {
        let scratch = Scratch::new("redis");
        let addresses: Vec<_> = (0..self.nodes).map(|_| free_address()).collect();
        let link = |address: &SocketAddr| Proxy::by_address(Protocol::Resp, *address);
        let links: Vec<_> = addresses.iter().filter(|_| self.are_apart).map(link).collect();
        let advertised: Vec<_> = match self.are_apart {
            true => links.iter().map(Proxy::address).collect(),
            false => addresses.clone(),
        };
        // The nodes of a cluster talk to each other on a second port, the cluster bus. By default its number is the
        // client port plus 10,000, which another process may use. So each node gets a free port for it.
        let buses: Vec<_> =
            self.masters.iter().flat_map(|_| &addresses).map(|_| free_port()).collect();
        let nodes: Vec<_> = (0..self.nodes)
            .map(|index| {
                let flags = self.peer_flags(index, &advertised, &buses);
                Arc::new(self.node(index, addresses[index], flags, &scratch))
            })
            .collect();
        let mut redis = Redis {
            restless: None,
            sentinels: None,
            cluster: None,
            nodes,
            links,
            options: self,
            scratch,
        };
        super::Server::wait_ready(&redis);
        if let Some(masters) = redis.options.masters {
            let cluster = Arc::new(Cluster::form(&redis.nodes, &buses, masters));
            if redis.options.is_restless {
                redis.nodes[0].stand_for(redis.nodes[1..].to_vec());
                redis.restless = Some(cluster::move_slots(Arc::clone(&cluster)));
            }
            redis.cluster = Some(cluster);
        }
        redis.sentinels = redis.options.sentinels.map(|patience| {
            Sentinels::start(&redis.scratch, advertised[0], redis.options.are_apart, patience)
        });
        redis.wait_confirmed();
        redis
    }

    /// The flags by which a node finds the other nodes.
    fn peer_flags(&self, index: usize, advertised: &[SocketAddr], buses: &[u16]) -> Vec<String> {
        let mut flags = Vec::new();
        let mut add = |name: &str, value: String| flags.extend([format!("--{name}"), value]);
        if let Some(bus) = buses.get(index) {
            add("cluster-enabled", "yes".to_owned());
            add("cluster-port", bus.to_string());
            add("cluster-node-timeout", "3000".to_owned());
            add("cluster-require-full-coverage", "no".to_owned());
            add("cluster-preferred-endpoint-type", "unknown-endpoint".to_owned());
        } else if index > 0 {
            add("replicaof", format!("{} {}", advertised[0].ip(), advertised[0].port()));
        }
        if self.are_apart {
            add("bind-source-addr", sentinels::source(index));
            add("replica-announce-ip", advertised[index].ip().to_string());
            add("replica-announce-port", advertised[index].port().to_string());
        }
        flags
    }

    fn node(
        &self,
        index: usize,
        address: SocketAddr,
        peers: Vec<String>,
        scratch: &Scratch,
    ) -> Node {
        let name = format!("n{index}");
        let directory = scratch.join(&name);
        std::fs::create_dir_all(&directory).expect("the scratch directory is writable");
        let mut bind = address.ip().to_string();
        if let Some(other) = &self.also_at {
            bind += &format!(" {other}");
        }
        let durable = if self.is_durable { "yes" } else { "no" };
        let pairs = [
            ("--port", address.port().to_string()),
            ("--bind", bind),
            ("--dir", directory.display().to_string()),
            ("--appendonly", durable.to_owned()),
            ("--appendfsync", "always".to_owned()),
            ("--save", String::new()),
            ("--loglevel", "notice".to_owned()),
            ("--repl-diskless-sync-delay", "0".to_owned()),
            ("--protected-mode", "no".to_owned()),
        ];
        let mut flags: Vec<_> =
            pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        flags.extend(peers);
        if self.socket {
            flags.extend([
                "--unixsocket".to_owned(),
                directory.join("socket").display().to_string(),
            ]);
        }
        if index == 0 {
            flags.extend(self.tls.iter().flat_map(|(_, flags)| flags.iter().cloned()));
        }
        flags.extend(self.flags.iter().cloned());
        let (log, environment) = (scratch.join(format!("{name}.log")), self.environment.clone());
        let launch = move || {
            let launch = Launch::new(binary(), &log).clear_env().args(&flags);
            environment.iter().fold(launch, |launch, (name, path)| launch.env(name, path))
        };
        Node::start(name, address, launch)
    }
}

/// A running Redis. On drop, its processes are killed and its data are removed.
#[derive(Debug)]
pub struct Redis {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    /// A thread that moves slots each second, if the test's setting asks for it.
    restless: Option<Restless>,
    sentinels: Option<Sentinels>,
    cluster: Option<Arc<Cluster>>,
    nodes: Vec<Arc<Node>>,
    /// For each node, the proxy by which the other servers reach it. Empty unless [`RedisOptions::apart`] was called.
    links: Vec<Proxy>,
    options: RedisOptions,
    scratch: Scratch,
}

impl Redis {
    /// One server, with default options: a restart loses no acknowledged write.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// The options with their default values, to be changed before the servers are started.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// The directory in which the nodes keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Kills the first node, and starts it again without its data.
    pub fn restart_empty(&self) {
        let (node, directory) = (&self.nodes[0], self.scratch.join("n0"));
        node.kill();
        std::fs::remove_dir_all(&directory).expect("the directory is ours");
        std::fs::create_dir_all(&directory).expect("the scratch directory is writable");
        node.restart();
        super::Server::wait_ready(self);
    }

    /// The address at which the first node serves clients by TLS.
    ///
    /// # Panics
    ///
    /// If the nodes do not serve clients by TLS.
    pub fn secure_address(&self) -> SocketAddr {
        self.options.tls.as_ref().expect("it has no TLS").0
    }

    /// The path of the first node's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("n0").join("socket")
    }

    /// Sends a command to a node. If the node refuses the command, that is an `Ok` with [`Reply::Error`].
    ///
    /// # Errors
    ///
    /// If the node does not answer.
    pub fn try_ask(&self, node: usize, command: &[&str]) -> io::Result<Reply> {
        ask(self.nodes[node].address(), None, command)
    }

    /// Sends a command to the first node, or, in a cluster, to the node that has the key. Returns the answer.
    ///
    /// # Panics
    ///
    /// If the node refuses the command or does not answer.
    pub fn ask(&self, command: &[&str]) -> Reply {
        let answer = match &self.cluster {
            Some(cluster) => cluster.ask_owner(command),
            None => self.try_ask(0, command),
        };
        match answer {
            Ok(Reply::Error(error)) => panic!("{command:?}: {error}"),
            Ok(reply) => reply,
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    /// The Sentinels of this Redis.
    ///
    /// # Panics
    ///
    /// If there are no Sentinels.
    pub fn sentinels(&self) -> &Sentinels {
        self.sentinels.as_ref().expect("it has no Sentinels")
    }

    /// Cuts these nodes and Sentinels off from all others, in both directions, until [`rejoin`](super::Server::rejoin).
    /// Clients can still reach all of them.
    ///
    /// Connections between the two sides are reset, and new ones are refused.
    ///
    /// # Panics
    ///
    /// Unless [`RedisOptions::apart`] was called.
    pub fn part(&self, nodes: &[usize], sentinels: &[usize]) {
        assert!(self.options.are_apart, "the nodes are connected directly");
        self.sentinels().part(&self.links, (nodes, sentinels));
    }

    /// The index of the node in the cluster that has the slot of this key.
    ///
    /// # Panics
    ///
    /// If no node has the slot, or if the servers are no cluster.
    pub fn owner(&self, key: &str) -> usize {
        self.the_cluster().owner(key).expect("a node has the slot")
    }

    /// Moves the slot of this key to another node of the cluster. In between, its keys are divided between the two
    /// nodes for the time `half_way`.
    ///
    /// # Panics
    ///
    /// If a node does not answer, or if the servers are no cluster.
    pub fn move_slot(&self, key: &str, to: usize, half_way: Duration) {
        self.the_cluster().move_slot(key, to, half_way).expect("the nodes answer");
    }

    fn the_cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("it is no cluster")
    }

    /// Waits until a replica is connected and has acknowledged a write, so that the master accepts writes. Returns at
    /// once if the master accepts writes without a replica.
    fn wait_confirmed(&self) {
        if !self.options.flags.iter().any(|flag| flag == "--min-replicas-to-write") {
            return;
        }
        let has_them = || {
            // Writes something, because a replica acknowledges nothing if there are no writes.
            let _ = self
                .try_ask(0, &["SET", "ready", "1"])
                .and_then(|_| self.try_ask(0, &["DEL", "ready"]));
            let info = self.try_ask(0, &["INFO", "replication"]).ok().and_then(|info| info.text());
            // A replica whose offset is zero has not acknowledged anything yet.
            let has_one = |info: String| {
                info.contains("state=online") && !info.contains("state=online,offset=0,")
            };
            info.is_none_or(|info| !info.contains("min_slaves_good_slaves:0") && has_one(info))
        };
        assert!(wait_until(READY, has_them), "no replica: {}", self.nodes[0].log());
    }

    /// Waits until a replica is connected to its master and has received all of the master's data.
    ///
    /// # Panics
    ///
    /// If this takes too long.
    pub fn wait_replicated(&self, replica: usize) {
        let has_all = || {
            let info = self.try_ask(replica, &["INFO", "replication"]).ok()?.text()?;
            Some(info.contains("master_link_status:up"))
        };
        assert!(wait_until(READY, || has_all() == Some(true)), "{:?}", self.nodes[replica].log());
    }
}

/// The path of the binary, which the server needs to execute itself again. Prints the version once per test process.
///
/// # Panics
///
/// If the binary is not installed.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).map(|place| place.join("redis-server"));
        let binary = places.find(|binary| binary.is_file()).expect(
            "`redis-server` is not installed: run `tests/run`, which installs it, or `apt-get install \
             redis-server`",
        );
        let version = Command::new(&binary).arg("--version").output().expect("it starts");
        eprintln!("{}", String::from_utf8_lossy(&version.stdout).trim());
        binary
    })
}
