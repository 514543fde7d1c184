//! Options with which a test starts Consul.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::{Scratch, certs};
use super::{Consul, MASTER};

/// The certificates with which a server offers TLS to its clients.
#[derive(Clone, Debug)]
pub struct ConsulTls {
    server: certs::Identity,
    authority: PathBuf,
    client_required: bool,
}

impl ConsulTls {
    /// TLS with a valid server certificate; clients need no certificate.
    pub fn new(certificates: &certs::Certificates) -> Self {
        Self {
            server: certificates.server.clone(),
            authority: certificates.authority.clone(),
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
}

/// How to start a [`Consul`].
#[derive(Clone, Debug)]
pub struct ConsulOptions {
    pub(super) nodes: usize,
    pub(super) tls: Option<ConsulTls>,
    pub(super) acl: Option<String>,
    pub(super) also_at: Option<String>,
    pub(super) more: Value,
}

impl Default for ConsulOptions {
    fn default() -> Self {
        Self { nodes: 1, tls: None, acl: None, also_at: None, more: json!({}) }
    }
}

impl ConsulOptions {
    /// Number of servers; one by default.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Serves clients by TLS. The certificates must outlive the server.
    pub fn tls(mut self, tls: ConsulTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Turns ACLs on. The token [`super::MASTER`] may do everything. The token [`super::TOKEN`] may do only what a
    /// client of this namespace needs.
    pub fn acl(mut self, namespace: &str) -> Self {
        self.acl = Some(namespace.to_owned());
        self
    }

    /// Also serves clients at this address, on the same ports. A test that runs in a network namespace of its own needs
    /// this.
    pub fn also_at(mut self, address: impl Into<String>) -> Self {
        self.also_at = Some(address.into());
        self
    }

    /// Sets a field of the configuration file.
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.more[name] = value;
        self
    }

    /// Starts the servers; they are ready on return.
    ///
    /// # Panics
    ///
    /// When Consul is not installed or does not become ready.
    pub fn start(self) -> Consul {
        Consul::start(self)
    }

    /// The configuration file of one server.
    pub(super) fn file(
        &self,
        name: &str,
        (http, https, gossip, index): (u16, Option<SocketAddr>, &[u16], usize),
        scratch: &Scratch,
    ) -> String {
        let also_at = self.also_at.as_deref().unwrap_or_default();
        let others: Vec<_> = gossip.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut file = json!({
            "node_name": name,
            "server": true,
            "bootstrap_expect": self.nodes,
            "bind_addr": "127.0.0.1",
            "client_addr": format!("127.0.0.1 {also_at}").trim_end(),
            "data_dir": scratch.join(name),
            "retry_join": others,
            "retry_interval": "200ms",
            "session_ttl_min": "500ms",
            "performance": { "raft_multiplier": 1 },
            "ports": {
                "http": http,
                "https": https.map_or(-1, |address| i32::from(address.port())),
                "server": super::free_port(),
                "serf_lan": gossip[index],
                "serf_wan": -1,
                "dns": -1,
                "grpc": -1,
            },
            "telemetry": { "prometheus_retention_time": "24h", "disable_hostname": true },
            // If this were true, the cluster would remove a server that is paused, and the sessions of that server's
            // agent would end.
            "autopilot": { "cleanup_dead_servers": false },
            "disable_update_check": true,
            "leave_on_terminate": false,
            "log_level": "warn",
        });
        if self.nodes == 1 {
            file["retry_join"] = json!([]);
        }
        if let Some(tls) = &self.tls {
            file["cert_file"] = json!(tls.server.certificate);
            file["key_file"] = json!(tls.server.key);
            file["ca_file"] = json!(tls.authority);
            file["verify_incoming_https"] = json!(tls.client_required);
        }
        if self.acl.is_some() {
            file["acl"] = json!({
                "enabled": true,
                "default_policy": "deny",
                "tokens": { "master": MASTER, "agent": MASTER },
            });
        }
        for (name, value) in self.more.as_object().into_iter().flatten() {
            file[name.as_str()] = value.clone();
        }
        file.to_string()
    }
}
