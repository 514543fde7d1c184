//! Options with which a test starts ZooKeeper.

use super::super::certs;
use super::Zookeeper;

/// The certificates with which a server offers TLS to its clients.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) server: certs::Identity,
    pub(super) authority: std::path::PathBuf,
    pub(super) client_required: bool,
}

/// How to start a [`Zookeeper`].
#[derive(Clone, Debug)]
pub struct ZookeeperOptions {
    pub(super) nodes: usize,
    pub(super) tls: Option<Tls>,
    pub(super) also_at: Option<String>,
    pub(super) lines: Vec<String>,
    pub(super) properties: Vec<String>,
    pub(super) peers_by_proxy: bool,
}

impl Default for ZookeeperOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            tls: None,
            also_at: None,
            lines: Vec::new(),
            properties: Vec::new(),
            peers_by_proxy: false,
        }
    }
}

impl ZookeeperOptions {
    /// Number of nodes; one by default.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Serves clients by TLS, with this certificate and key. The files must outlive the server.
    pub fn tls(mut self, certificates: &certs::Certificates, server: &certs::Identity) -> Self {
        let (server, authority) = (server.clone(), certificates.authority.clone());
        self.tls = Some(Tls { server, authority, client_required: false });
        self
    }

    /// If clients connect by TLS: refuses clients that present no certificate signed by the authority.
    pub fn require_client(mut self) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.client_required = true;
        }
        self
    }

    /// Also serves clients at this address, on the same ports. A test that runs in a network namespace of its own needs
    /// this.
    pub fn also_at(mut self, address: impl Into<String>) -> Self {
        self.also_at = Some(address.into());
        self
    }

    /// Adds a line to the configuration, `name=value`.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Sets a property of the Java virtual machine, `name=value`. Some options of ZooKeeper cannot be set in the
    /// configuration file.
    pub fn property(mut self, property: impl Into<String>) -> Self {
        self.properties.push(property.into());
        self
    }

    /// Makes the nodes connect to their leader only through proxies, so that a test can isolate a follower.
    pub fn peers_by_proxy(mut self) -> Self {
        self.peers_by_proxy = true;
        self
    }

    /// Starts the servers; they are ready on return.
    ///
    /// # Panics
    ///
    /// When ZooKeeper is not installed or does not become ready.
    pub fn start(self) -> Zookeeper {
        Zookeeper::start(self)
    }
}
