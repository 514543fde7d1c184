//! Options with which a test starts etcd.

use std::path::PathBuf;

use super::{super::certs, Etcd};

/// The certificates with which a server offers TLS to its clients.
#[derive(Clone, Debug)]
pub struct Tls {
    pub(super) server: certs::Identity,
    pub(super) authority: PathBuf,
    pub(super) client: certs::Identity,
    pub(super) client_required: bool,
}

impl Tls {
    /// TLS with a valid server certificate; clients need no certificate.
    pub fn new(certificates: &certs::Certificates) -> Self {
        Self {
            server: certificates.server.clone(),
            authority: certificates.authority.clone(),
            client: certificates.client.clone(),
            client_required: false,
        }
    }

    /// Makes the server present another certificate, for instance an expired one, or one for another host.
    pub fn server(mut self, identity: &certs::Identity) -> Self {
        self.server = identity.clone();
        self
    }

    /// Makes the server refuse clients that present no certificate signed by the authority.
    pub fn require_client(mut self) -> Self {
        self.client_required = true;
        self
    }

    /// The command-line flags of etcd for these settings.
    pub(super) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("--cert-file={}", self.server.certificate.display()),
            format!("--key-file={}", self.server.key.display()),
        ];
        if self.client_required {
            flags.push("--client-cert-auth".to_owned());
            flags.push(format!("--trusted-ca-file={}", self.authority.display()));
        }
        flags
    }
}

/// How to start an [`Etcd`].
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(super) nodes: usize,
    pub(super) tls: Option<Tls>,
    pub(super) user_prefix: Option<String>,
    pub(super) also_at: Option<String>,
    pub(super) flags: Vec<String>,
    pub(super) peers_by_proxy: bool,
    pub(super) token_key: Option<&'static str>,
    pub(super) is_restless: bool,
    pub(super) by_grpc_proxy: bool,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            tls: None,
            user_prefix: None,
            also_at: None,
            flags: Vec::new(),
            peers_by_proxy: false,
            token_key: None,
            is_restless: false,
            by_grpc_proxy: false,
        }
    }
}

impl EtcdOptions {
    /// Number of nodes; one by default.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Serves clients by TLS. The certificates must outlive the server.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Turns authentication on. The user [`super::ROOT`] may do everything. The user [`super::USER`] may read and write
    /// only the keys that begin with `prefix`.
    pub fn users(mut self, prefix: &str) -> Self {
        self.user_prefix = Some(prefix.to_owned());
        self
    }

    /// Also serves clients at this address, on the same ports. A test that runs in a network namespace of its own needs
    /// this.
    pub fn also_at(mut self, address: impl Into<String>) -> Self {
        self.also_at = Some(address.into());
        self
    }

    /// Adds a flag to etcd's command line, `--name=value`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Connects the nodes to one another only through proxies, so that a test can [isolate](Etcd::isolate) a node.
    pub fn peers_by_proxy(mut self) -> Self {
        self.peers_by_proxy = true;
        self
    }

    /// Starts the servers; they are ready on return.
    ///
    /// # Panics
    ///
    /// When etcd is not installed or does not become ready.
    pub fn start(self) -> Etcd {
        Etcd::start(self)
    }
}
