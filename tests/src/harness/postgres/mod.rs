//! PostgreSQL servers: one, or a primary with streaming replicas, on loopback, with TLS and users if a test wants them.
//!
//! The binaries are Debian's (`postgresql`, 15). If they are not installed, the test fails; it is not skipped.
//! PostgreSQL refuses to run as root, so if the tests run as root, the servers run as `nobody`. Each test process
//! creates a data directory once, and copies it for each server.

mod pooler;
mod rights;
mod server;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use self::pooler::Pooler;
use super::{Certificates, Identity, Launch, Node, Scratch, WallClock, ports::free_address};

/// How long the servers may take until they are ready.
const READY: Duration = Duration::from_secs(20);
/// The directory of the data that were saved.
const SAVED: &str = "saved";
/// The contents of `pg_hba.conf`: the superuser needs no password, but every other role does.
const ACCESS: &str = "host all postgres all trust\nhost replication postgres all trust\n\
                      host all all all scram-sha-256\n";

/// How to start a [`Postgres`].
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    replicas: usize,
    also_at: Option<String>,
    tls: Option<(Vec<PathBuf>, bool)>,
    settings: Vec<(String, String)>,
    pooled: Option<usize>,
    is_restricted: bool,
    environment: Vec<(&'static str, String)>,
}

impl PostgresOptions {
    /// Adds this number of streaming replicas of the first node.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets an option of `postgresql.conf`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has clients connect to a pgbouncer in front of the first node, which has this number of connections to the node.
    pub fn pooled(mut self, connections: usize) -> Self {
        self.pooled = Some(connections);
        self
    }

    /// Has clients connect as a role that has the rights on the library's tables that the store's page asks for, and no
    /// others. The tables are made first.
    pub fn restricted(mut self) -> Self {
        self.is_restricted = true;
        self
    }

    /// Also serves clients at this address. A test that runs in a network namespace of its own needs this.
    pub fn also_at(mut self, address: &str) -> Self {
        self.also_at = Some(address.to_owned());
        self
    }

    /// Has the servers see this clock.
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// Serves clients by TLS with the certificate `shown`, and refuses connections without TLS. If `client_required`,
    /// clients need a certificate too.
    pub fn tls(
        mut self,
        certificates: &Certificates,
        shown: &Identity,
        client_required: bool,
    ) -> Self {
        let files =
            vec![shown.certificate.clone(), shown.key.clone(), certificates.authority.clone()];
        self.tls = Some((files, client_required));
        self
    }

    /// Starts the servers; they are ready on return.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed or does not become ready.
    pub fn start(self) -> Postgres {
        let scratch = open_scratch("postgres");
        let addresses: Vec<_> = (0..=self.replicas).map(|_| free_address()).collect();
        let mut nodes = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let data = scratch.join(format!("n{index}"));
            match index {
                0 => self.make_primary(&data),
                _ => make_replica(&data, addresses[0]),
            }
            nodes.push(Arc::new(self.node(index, *address, &data, &scratch)));
            wait_ready(&nodes[index]);
        }
        let pooler = self.pooled.map(|connections| Pooler::before(addresses[0], connections));
        if self.is_restricted {
            rights::make_role(addresses[0]);
        }
        Postgres { nodes, pooler, is_restricted: self.is_restricted, scratch }
    }

    fn make_primary(&self, data: &Path) {
        copy(template(), data);
        let mut access = ACCESS.to_owned();
        if let Some((files, client_required)) = &self.tls {
            access = access.replace("host ", "hostssl ").replace(
                "trust",
                if *client_required { "trust clientcert=verify-ca" } else { "trust" },
            );
            put_certificates(data, files);
        }
        put(&data.join("pg_hba.conf"), access.as_bytes());
    }

    fn node(&self, index: usize, address: SocketAddr, data: &Path, scratch: &Scratch) -> Node {
        let mut listens = address.ip().to_string();
        if let Some(other) = &self.also_at {
            listens += &format!(",{other}");
        }
        let mut settings = vec![
            ("port", address.port().to_string()),
            ("listen_addresses", listens),
            ("unix_socket_directories", String::new()),
            ("shared_buffers", "32MB".to_owned()),
            ("max_connections", "200".to_owned()),
            ("max_wal_size", "64MB".to_owned()),
            ("log_statement", "all".to_owned()),
            ("log_line_prefix", String::new()),
        ];
        if self.tls.is_some() {
            settings.extend([("ssl", "on".to_owned()), ("ssl_ca_file", "ca.crt".to_owned())]);
        }
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let settings = settings.into_iter().chain(own);
        let flags: Vec<_> = ["-D".to_owned(), data.display().to_string()]
            .into_iter()
            .chain(settings.flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]))
            .collect();
        let name = format!("n{index}");
        let log = scratch.join(format!("{name}.log"));
        let environment = self.environment.clone();
        let launch = move || {
            let command = as_servers(binary("postgres"));
            let words = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
            let launch = Launch::new(command.get_program(), &log).clear_env();
            let launch = environment.iter().fold(launch, |launch, (name, to)| launch.env(name, to));
            launch.args(words).args(&flags).with_children()
        };
        Node::start(name, address, launch)
    }
}

/// A running PostgreSQL. On drop, its processes are killed and its data are removed.
#[derive(Debug)]
pub struct Postgres {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    nodes: Vec<Arc<Node>>,
    pooler: Option<Pooler>,
    is_restricted: bool,
    scratch: Scratch,
}

impl Postgres {
    /// One server, with default options.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// The options with their default values, to be changed before the servers are started.
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// The directory in which the nodes keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Executes a statement on the first node as the superuser. Returns the answer: one line for each row, with `|`
    /// between columns.
    ///
    /// # Panics
    ///
    /// If the node refuses the statement or does not answer.
    pub fn ask(&self, statement: &str) -> String {
        let answer = self.try_ask(0, statement);
        answer.unwrap_or_else(|said| panic!("{statement}: {said}"))
    }

    /// Like [`ask`](Self::ask), but on any node, and returns the node's message as an error.
    ///
    /// # Errors
    ///
    /// If the node refuses the statement or does not answer.
    pub fn try_ask(&self, node: usize, statement: &str) -> Result<String, String> {
        ask(self.nodes[node].address(), "postgres", "postgres", statement)
    }

    /// Executes a statement on the first node, as this role and in this database. Returns the answer.
    ///
    /// # Errors
    ///
    /// If the node refuses the statement or does not answer.
    pub fn ask_as(&self, role: &str, database: &str, statement: &str) -> Result<String, String> {
        ask(self.nodes[0].address(), role, database, statement)
    }

    /// The pgbouncer in front of the first node.
    ///
    /// # Panics
    ///
    /// Without [`PostgresOptions::pooled`].
    pub fn pooler(&self) -> &Pooler {
        self.pooler.as_ref().expect("the servers were started with a pooler")
    }

    /// Copies the data of the first node, as they are at this moment: its processes stand still meanwhile. To be called once.
    ///
    /// # Panics
    ///
    /// If the data cannot be copied.
    pub fn save(&self) {
        self.nodes[0].pause();
        copy(&self.scratch.join("n0"), &self.scratch.join(SAVED));
        self.nodes[0].resume();
    }

    /// Kills the first node and starts it again with the data that [`save`](Self::save) has copied. It is ready on return.
    ///
    /// # Panics
    ///
    /// If the data cannot be copied, or the node does not become ready.
    pub fn restore(&self) {
        let data = self.scratch.join("n0");
        self.nodes[0].kill();
        // They are moved and not removed: the node's other processes may not have ended yet.
        let replaced = fs::rename(&data, self.scratch.join("replaced"));
        replaced.expect("the data are restored once");
        copy(&self.scratch.join(SAVED), &data);
        self.nodes[0].restart();
        wait_ready(&self.nodes[0]);
    }

    /// Gives the first node these certificates, which it reads when it starts.
    ///
    /// # Panics
    ///
    /// If a certificate cannot be read.
    pub fn put_certificates(&self, certificates: &Certificates) {
        let Identity { certificate, key } = &certificates.server;
        let files = [certificate, key, &certificates.authority].map(Clone::clone);
        put_certificates(&self.scratch.join("n0"), &files);
    }

    /// Promotes a replica to primary.
    ///
    /// # Panics
    ///
    /// If the replica refuses.
    pub fn promote(&self, node: usize) {
        let promoted = self.try_ask(node, "SELECT pg_promote()");
        assert_eq!(promoted.as_deref(), Ok("t"));
    }
}

fn ask(address: SocketAddr, role: &str, database: &str, statement: &str) -> Result<String, String> {
    let mut command = Command::new(binary("psql"));
    command.env_clear().env("PGCONNECT_TIMEOUT", "2").env("PGCLIENTENCODING", "UTF8");
    // Only the pooler asks for it.
    command.env("PGPASSWORD", pooler::PASSWORD);
    command.args(["-XAtq", "-v", "ON_ERROR_STOP=1"]);
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    command.args(["-h", &host, "-p", &port, "-U", role, "-d", database, "-c", statement]);
    let answer = command.output().expect("psql is installed: see tests/install");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match answer.status.success() {
        true => Ok(text(&answer.stdout)),
        false => Err(text(&answer.stderr)),
    }
}

fn wait_ready(node: &Node) {
    let is_ready = || {
        let said = ask(node.address(), "postgres", "postgres", "SELECT 1");
        // A server that refuses this connection only because it demands TLS is ready too.
        !node.is_running() || said.is_ok() || said.is_err_and(|said| said.contains("pg_hba.conf"))
    };
    assert!(super::wait_until(READY, is_ready), "not ready: {}", node.log());
}

/// A scratch directory in which the user that runs the servers can create files.
fn open_scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o777)).expect("it is ours");
    scratch
}

/// The path of a data directory that no server has used yet, to be copied.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = TEMPLATE.get_or_init(|| {
        let scratch = open_scratch("postgres-template");
        let path = scratch.join("data");
        let mut command = as_servers(binary("initdb"));
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        run(command.args(["--wal-segsize=1", "-D"]).arg(&path));
        (scratch, path)
    });
    path
}

fn make_replica(data: &Path, primary: SocketAddr) {
    let mut command = as_servers(binary("pg_basebackup"));
    let (host, port) = (primary.ip().to_string(), primary.port().to_string());
    command.args(["-h", &host, "-p", &port, "-U", "postgres", "--checkpoint=fast", "--no-sync"]);
    run(command.args(["-R", "-D"]).arg(data));
}

fn copy(data: &Path, to: &Path) {
    run(as_servers("cp").arg("-a").arg(data).arg(to));
}

/// Puts the files of the server's certificate, of its key and of the authority where the server finds them.
fn put_certificates(data: &Path, files: &[PathBuf]) {
    for (file, name) in files.iter().zip(["server.crt", "server.key", "ca.crt"]) {
        put(&data.join(name), &fs::read(file).expect("the certificates are there"));
    }
}

/// Writes a file that only the user that runs the servers can read.
fn put(path: &Path, text: &[u8]) {
    fs::write(path, text).expect("the directory is writable");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is ours");
    if is_root() {
        run(Command::new("chown").arg("nobody:nogroup").arg(path));
    }
}

fn run(command: &mut Command) {
    let done = command.output().expect("PostgreSQL is installed: see tests/install");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A command that runs `program` as the user that runs the servers.
fn as_servers(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    }
    // When a process changes its user, the kernel clears its parent-death signal. So `setpriv` sets the signal again.
    command.args(["--pdeathsig", "KILL", "--"]).arg(program.as_ref());
    command.current_dir("/");
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The path of a server program. Debian installs these programs outside `PATH`, in a folder for each version.
fn binary(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let folders = versions.map(|version| version.path().join("bin"));
        folders.max().expect("PostgreSQL is not installed: see tests/install")
    });
    folder.join(name)
}
