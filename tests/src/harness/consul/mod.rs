//! Consul servers: one or three, on loopback, with TLS and ACLs if a test wants them.
//!
//! The binary is Debian's (1.8.7). If it is not installed, the test fails; it is not skipped. A server that restarts
//! takes about two seconds to become the leader, because Consul first waits for a heartbeat of another leader.

mod admin;
mod options;
mod server;

pub use options::{ConsulOptions, ConsulTls};

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use super::{Launch, Node, Scratch, ports::free_address, ports::free_port, wait_until};

/// The administrator's token, if ACLs are on.
pub const MASTER: &str = "6f1a5b1e-9c1d-4d6b-8d3a-canary9f2b01";
/// The client's token, if ACLs are on. It has exactly the rights that the documentation asks for.
pub const TOKEN: &str = "0b7c2d3e-4f5a-4b6c-9d7e-8f9a0b1c2d3e";

/// How long the servers may take until they are ready.
const READY: Duration = Duration::from_secs(20);

/// Running Consul servers. On drop, the processes are killed and the data are removed.
#[derive(Debug)]
pub struct Consul {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    nodes: Vec<Node>,
    /// The address at which each server serves the harness, always without TLS.
    plain: Vec<SocketAddr>,
    options: ConsulOptions,
    scratch: Scratch,
}

impl Consul {
    /// One server, without TLS or ACLs.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// A cluster of three, without TLS or ACLs.
    pub fn three() -> Self {
        Self::options().nodes(3).start()
    }

    /// The options with their default values, to be changed before the servers are started.
    pub fn options() -> ConsulOptions {
        ConsulOptions::default()
    }

    fn start(options: ConsulOptions) -> Self {
        require_binary();
        let scratch = Scratch::new("consul");
        let gossip: Vec<u16> = (0..options.nodes).map(|_| free_port()).collect();
        let (mut nodes, mut plain) = (Vec::new(), Vec::new());
        for index in 0..options.nodes {
            let http = free_address();
            let https = options.tls.as_ref().map(|_| free_address());
            let name = format!("n{index}");
            let config = options.file(&name, (http.port(), https, &gossip, index), &scratch);
            let file = scratch.join(format!("{name}.json"));
            std::fs::write(&file, config).expect("the directory is ours");
            let log = scratch.join(format!("{name}.log"));
            let launch = move || {
                Launch::new("consul", &log)
                    .clear_env()
                    .args(["agent", "-config-file"])
                    .args([&file])
            };
            nodes.push(Node::start(name, https.unwrap_or(http), launch));
            plain.push(http);
        }
        let consul = Self { nodes, plain, options, scratch };
        consul.wait_ready();
        if let Some(namespace) = &consul.options.acl {
            consul.make_token(namespace);
        }
        consul
    }

    /// The directory in which the servers keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// The servers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether all servers run and can create sessions.
    pub fn is_well(&self) -> bool {
        (0..self.nodes.len()).all(|index| self.nodes[index].is_running() && self.is_ready(index))
    }

    /// Waits until each server whose process runs can create sessions.
    ///
    /// # Panics
    ///
    /// If a server cannot create sessions within twenty seconds.
    pub fn wait_ready(&self) {
        let start = Instant::now();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            let left = READY.saturating_sub(start.elapsed());
            let ready = wait_until(left, || self.is_ready(index) || !node.is_running());
            assert!(
                ready && node.is_running(),
                "Consul server {} is not ready:\n{}",
                node.name(),
                node.log(),
            );
        }
    }
}

/// Fails the test if the binary is not installed. Prints the version once per test process.
fn require_binary() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once_force(|_| {
        let Ok(version) = Command::new("consul").arg("version").output() else {
            panic!(
                "`consul` is not installed: run `tests/run`, which installs it, \
                 or `apt-get install consul`"
            );
        };
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        eprintln!("{}", version.lines().next().unwrap_or("consul"));
    });
}
