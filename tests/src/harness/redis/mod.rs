//! Redis servers: one, or a master with replicas, on loopback, with TLS and users when asked.
//!
//! The binary is Debian's (`redis-server`, 7.0); without it the test fails, it does not pass unrun. Unless
//! somebody says otherwise its log is synced for each write, so that it keeps what it answered.

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

/// How long servers may take to be ready.
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
    /// How many milliseconds Sentinels wait for a master that is silent, if there are some.
    sentinels: Option<u64>,
    /// They reach each other by proxies.
    are_apart: bool,
    /// How many masters the cluster has, if it is one.
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
    /// Number of nodes: the first is the master, the others its replicas.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// With three Sentinels, which give up a master that is silent for so long: [`Redis::sentinels`].
    pub fn sentinels(mut self, patience: Duration) -> Self {
        self.sentinels = Some(patience.as_millis() as u64);
        self
    }

    /// Nodes and Sentinels reach each other by proxies only, so that they can be [parted](Redis::part).
    pub fn apart(mut self) -> Self {
        self.are_apart = true;
        self
    }

    /// A cluster: so many of the nodes are masters, the others their replicas. A node names no host where it sends
    /// clients on to another, but a port only.
    pub fn cluster(mut self, masters: usize) -> Self {
        self.masters = Some(masters);
        self
    }

    /// One of the settings in which all checks are to pass; nothing for an empty word.
    ///
    /// * `sentinels`: three Sentinels, and a master that does nothing without its replica. There is no fail-over.
    /// * `cluster`: three masters, and each second the slots of all who are there move to the next one. The URL names one.
    ///
    /// # Panics
    ///
    /// On any other word.
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

    /// Keeps nothing when its process ends.
    pub fn forgetful(mut self) -> Self {
        self.is_durable = false;
        self
    }

    /// Serves clients by TLS too, at an address of its own; the certificates must outlive the server.
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

    /// Serves clients at a socket in its directory too: [`Redis::socket`].
    pub fn socket(mut self) -> Self {
        self.socket = true;
        self
    }

    /// Serves clients at this address too, on the same ports; for a network namespace of one's own.
    pub fn also_at(mut self, address: impl Into<String>) -> Self {
        self.also_at = Some(address.into());
        self
    }

    /// Adds a flag: `--name value`.
    pub fn flag(mut self, name: &str, value: impl Into<String>) -> Self {
        self.flags.extend([format!("--{name}"), value.into()]);
        self
    }

    /// Sets a variable of its environment to a path.
    pub fn environment(mut self, name: &str, path: &Path) -> Self {
        self.environment.push((name.to_owned(), path.to_owned()));
        self
    }

    /// Starts it; ready on return.
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
        // Ten thousand above its own, the default, may be somebody else's.
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

    /// What a node has to know of the others.
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

/// A running Redis; its processes and data are gone on drop.
#[derive(Debug)]
pub struct Redis {
    // Before `scratch`: the processes end first.
    /// What moves slots, if somebody does.
    restless: Option<Restless>,
    sentinels: Option<Sentinels>,
    cluster: Option<Arc<Cluster>>,
    nodes: Vec<Arc<Node>>,
    /// What leads to each node for the others; empty unless asked for.
    links: Vec<Proxy>,
    options: RedisOptions,
    scratch: Scratch,
}

impl Redis {
    /// One server that keeps what it answered.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// Everything that can be chosen.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// Where its nodes keep their data and their logs.
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

    /// Where it serves by TLS.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn secure_address(&self) -> SocketAddr {
        self.options.tls.as_ref().expect("it has no TLS").0
    }

    /// The first node's socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("n0").join("socket")
    }

    /// Asks a node; a refusal is an answer.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn try_ask(&self, node: usize, command: &[&str]) -> io::Result<Reply> {
        ask(self.nodes[node].address(), None, command)
    }

    /// What the first node answers; in a cluster, that which has the key.
    ///
    /// # Panics
    ///
    /// When it refuses, or does not answer.
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

    /// Its Sentinels.
    ///
    /// # Panics
    ///
    /// When it has none.
    pub fn sentinels(&self) -> &Sentinels {
        self.sentinels.as_ref().expect("it has no Sentinels")
    }

    /// Cuts these nodes and Sentinels off from all others, both ways, until [`rejoin`](super::Server::rejoin); clients still
    /// reach all.
    ///
    /// Connections are reset and refused.
    ///
    /// # Panics
    ///
    /// Unless they are [apart](RedisOptions::apart).
    pub fn part(&self, nodes: &[usize], sentinels: &[usize]) {
        assert!(self.options.are_apart, "the nodes are connected directly");
        self.sentinels().part(&self.links, (nodes, sentinels));
    }

    /// Which node of the cluster has the slot of this key.
    ///
    /// # Panics
    ///
    /// When none has, and without a cluster.
    pub fn owner(&self, key: &str) -> usize {
        self.the_cluster().owner(key).expect("a node has the slot")
    }

    /// Moves the slot of this key to another node of the cluster; for so long it is half here and half there.
    ///
    /// # Panics
    ///
    /// When a node does not answer, and without a cluster.
    pub fn move_slot(&self, key: &str, to: usize, half_way: Duration) {
        self.the_cluster().move_slot(key, to, half_way).expect("the nodes answer");
    }

    fn the_cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("it is no cluster")
    }

    /// Waits until the master has the replicas without which it does nothing.
    fn wait_confirmed(&self) {
        if !self.options.flags.iter().any(|flag| flag == "--min-replicas-to-write") {
            return;
        }
        let has_them = || {
            // So that there is something to confirm.
            let _ = self
                .try_ask(0, &["SET", "ready", "1"])
                .and_then(|_| self.try_ask(0, &["DEL", "ready"]));
            let info = self.try_ask(0, &["INFO", "replication"]).ok().and_then(|info| info.text());
            // Once it has confirmed anything.
            let has_one = |info: String| {
                info.contains("state=online") && !info.contains("state=online,offset=0,")
            };
            info.is_none_or(|info| !info.contains("min_slaves_good_slaves:0") && has_one(info))
        };
        assert!(wait_until(READY, has_them), "no replica: {}", self.nodes[0].log());
    }

    /// Waits until a replica has all that its master has.
    ///
    /// # Panics
    ///
    /// When it has not in good time.
    pub fn wait_replicated(&self, replica: usize) {
        let has_all = || {
            let info = self.try_ask(replica, &["INFO", "replication"]).ok()?.text()?;
            Some(info.contains("master_link_status:up"))
        };
        assert!(wait_until(READY, || has_all() == Some(true)), "{:?}", self.nodes[replica].log());
    }
}

/// Where the binary is, as it has to know to execute itself anew; prints the version once.
///
/// # Panics
///
/// When it is missing.
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
