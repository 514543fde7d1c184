//! Redis servers: one, or a master with replicas, on loopback, with TLS and users when asked.
//!
//! The binary is Debian's (`redis-server`, 7.0); without it the test fails, it does not pass unrun. Unless
//! somebody says otherwise its log is synced for each write, so that it keeps what it answered.

mod resp;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

pub use resp::{Reply, ask};

use super::{Certificates, Identity, Launch, Node, Scratch, ports::free_address, wait_until};

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
        }
    }
}

impl RedisOptions {
    /// Number of nodes: the first is the master, the others its replicas.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
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
        require_binary();
        let scratch = Scratch::new("redis");
        let addresses: Vec<_> = (0..self.nodes).map(|_| free_address()).collect();
        let nodes = addresses
            .iter()
            .enumerate()
            .map(|(index, address)| self.node(index, *address, addresses[0], &scratch));
        let redis = Redis { nodes: nodes.collect(), options: self, scratch };
        super::Server::wait_ready(&redis);
        redis
    }

    fn node(
        &self,
        index: usize,
        address: SocketAddr,
        master: SocketAddr,
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
        if index > 0 {
            flags.extend(["--replicaof".to_owned(), format!("{} {}", master.ip(), master.port())]);
        }
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
            let launch = Launch::new("redis-server", &log).clear_env().args(&flags);
            environment.iter().fold(launch, |launch, (name, path)| launch.env(name, path))
        };
        Node::start(name, address, launch)
    }
}

/// A running Redis; its processes and data are gone on drop.
#[derive(Debug)]
pub struct Redis {
    // Before `scratch`: the processes end first.
    nodes: Vec<Node>,
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

    /// What the first node answers.
    ///
    /// # Panics
    ///
    /// When it refuses, or does not answer.
    pub fn ask(&self, command: &[&str]) -> Reply {
        match self.try_ask(0, command) {
            Ok(Reply::Error(error)) => panic!("{command:?}: {error}"),
            Ok(reply) => reply,
            Err(error) => panic!("{command:?}: {error}"),
        }
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

/// Fails the test when the binary is missing, and prints the version once.
fn require_binary() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once(|| {
        let Ok(version) = Command::new("redis-server").arg("--version").output() else {
            panic!(
                "`redis-server` is not installed: run `tests/run`, which installs it, or \
                 `apt-get install redis-server`"
            );
        };
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        eprintln!("{}", version.trim());
    });
}
