//! pgbouncer between clients and a server, in the mode in which each transaction may use another connection to the
//! server.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::super::{Launch, Node, Scratch, ports::free_address, wait_until};
use super::{READY, as_servers, ask, open_scratch, put};

/// Where Debian installs pgbouncer.
const PROGRAM: &str = "/usr/sbin/pgbouncer";
/// With this password the user `postgres` may connect to pgbouncer.
pub(super) const PASSWORD: &str = "pooled";
/// How many clients pgbouncer lets in. It is more than all checks have that run at the same time.
const CLIENTS: usize = 1_000;

/// A pgbouncer in transaction mode. Its process is killed on drop.
#[derive(Debug)]
pub struct Pooler {
    node: Node,
    // Declared after `node`, so that the process ends before its directory is removed.
    _scratch: Scratch,
}

impl Pooler {
    /// Whether pgbouncer is installed on this machine.
    pub fn is_installed() -> bool {
        Path::new(PROGRAM).is_file()
    }

    /// Starts a pgbouncer in front of this server. It has this number of connections to the server, and is ready when
    /// this returns.
    ///
    /// # Panics
    ///
    /// If the pgbouncer does not become ready.
    pub(super) fn before(server: SocketAddr, connections: usize) -> Self {
        let scratch = open_scratch("pgbouncer");
        let address = free_address();
        let (file, users) = (scratch.join("pgbouncer.ini"), scratch.join("users"));
        put(&users, format!("\"postgres\" \"{PASSWORD}\"\n").as_bytes());
        put(&file, settings(server, address, connections, &users).as_bytes());
        let log = scratch.join("log");
        let launch = move || {
            let command = as_servers(PROGRAM);
            let words = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
            Launch::new(command.get_program(), &log).clear_env().args(words).args([&file])
        };
        let node = Node::start("pgbouncer", address, launch);
        let is_ready = || ask(address, "postgres", "postgres", "SELECT 1").is_ok();
        assert!(wait_until(READY, is_ready), "not ready: {}", node.log());
        Self { node, _scratch: scratch }
    }

    /// Executes a statement as the superuser through pgbouncer, and returns the server's answer.
    ///
    /// # Errors
    ///
    /// If the server or pgbouncer refuses the statement or does not answer.
    pub fn ask(&self, statement: &str) -> Result<String, String> {
        ask(self.address(), "postgres", "postgres", statement)
    }

    /// The address at which pgbouncer serves clients.
    pub(super) fn address(&self) -> SocketAddr {
        self.node.address()
    }
}

fn settings(server: SocketAddr, own: SocketAddr, connections: usize, users: &Path) -> String {
    let mut text = String::from("[databases]\n");
    // Writing to a string cannot fail.
    let (host, port) = (server.ip(), server.port());
    let _ = writeln!(text, "* = user=postgres host={host} port={port}\n[pgbouncer]");
    let _ = writeln!(text, "listen_addr = {}\nlisten_port = {}", own.ip(), own.port());
    let _ = writeln!(text, "pool_mode = transaction\ndefault_pool_size = {connections}");
    let _ = writeln!(text, "auth_type = scram-sha-256\nauth_file = {}", users.display());
    let _ = writeln!(text, "max_client_conn = {CLIENTS}");
    text + "unix_socket_dir =\nserver_login_retry = 1\n"
}
