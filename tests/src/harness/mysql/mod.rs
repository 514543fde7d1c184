//! MariaDB servers: one, or a primary with replicas, on loopback, with TLS if the test wants it.
//!
//! The binaries are Debian's (`mariadb-server`, 10.11). If they are not installed, a test that starts a server fails;
//! only the soak has such tests. Each test process creates a data directory once, and copies it for each server.

mod rights;
mod server;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Certificates, Identity, Launch, Node, Scratch, WallClock, ports::free_address};

/// How long the server may take until it is ready.
const READY: Duration = Duration::from_secs(30);
/// Where Debian installs the server.
const PROGRAM: &str = "/usr/sbin/mariadbd";
/// The user of the harness and of the clients. It may do everything and needs no password.
const USER: &str = "coordination";

/// The directory of the data that were saved.
const SAVED: &str = "saved";
/// Makes a server writable until it is restarted.
const WRITABLE: &str = "SET GLOBAL read_only = 0";

/// How to start a [`Mysql`].
#[derive(Clone, Debug, Default)]
pub struct MysqlOptions {
    replicas: usize,
    also_at: Option<String>,
    tls: Option<(Vec<PathBuf>, bool)>,
    settings: Vec<(String, String)>,
    is_restricted: bool,
    environment: Vec<(&'static str, String)>,
}

impl MysqlOptions {
    /// Adds this number of replicas of the first node. Each server has `read_only` in its options, as the library asks for,
    /// and the first one is made writable afterwards.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets an option of the server, by its name in `my.cnf`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has clients connect as a user who has the rights on the library's tables that the store's page asks for, and no
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
    /// When MariaDB is not installed or does not become ready.
    pub fn start(self) -> Mysql {
        let scratch = Scratch::new("mysql");
        let users = scratch.join("users.sql");
        let required = if matches!(self.tls, Some((_, true))) { " REQUIRE x509" } else { "" };
        let text = format!(
            "CREATE OR REPLACE USER '{USER}'@'%'{required};\nGRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
        );
        fs::write(&users, text).expect("the directory is ours");
        let nodes: Vec<_> = (0..=self.replicas)
            .map(|index| {
                let node = Arc::new(self.node(index, free_address(), &users, &scratch));
                wait_ready(&node);
                node
            })
            .collect();
        let mysql = Mysql { nodes, is_restricted: self.is_restricted, scratch };
        if self.is_restricted {
            rights::make_user(&mysql);
        }
        if self.replicas > 0 {
            mysql.ask(WRITABLE);
            let primary = mysql.nodes[0].address();
            (1..=self.replicas).for_each(|replica| mysql.replicate(replica, primary));
        }
        mysql
    }

    fn node(&self, index: usize, address: SocketAddr, users: &Path, scratch: &Scratch) -> Node {
        let data = scratch.join(format!("n{index}"));
        copy(template(), &data);
        let at = |name: &str| scratch.join(format!("n{index}-{name}")).display().to_string();
        let temporary = at("tmp");
        fs::create_dir(&temporary).expect("the directory is ours");
        let mut settings = vec![
            ("datadir", data.display().to_string()),
            ("init-file", users.display().to_string()),
            ("port", address.port().to_string()),
            (
                "bind-address",
                if self.also_at.is_some() { "*".to_owned() } else { address.ip().to_string() },
            ),
            ("socket", at("s")),
            ("pid-file", at("pid")),
            // A directory for temporary files that no other server uses. When a server starts, it removes all temporary
            // files in its directory, because it takes them for files that were left by a crash.
            ("tmpdir", temporary),
            ("skip-name-resolve", "on".to_owned()),
            ("innodb-buffer-pool-size", "32M".to_owned()),
            ("innodb-log-file-size", "4M".to_owned()),
            // The next options make the server start sooner.
            ("innodb-temp-data-file-path", "ibtmp1:3M:autoextend".to_owned()),
            ("innodb-buffer-pool-load-at-startup", "off".to_owned()),
            ("performance-schema", "off".to_owned()),
            ("max-connections", "400".to_owned()),
            ("general-log", "on".to_owned()),
            ("general-log-file", at("statements")),
        ];
        if is_root() {
            settings.push(("user", "root".to_owned()));
        }
        if self.replicas > 0 {
            settings.push(("server-id", (1 + index).to_string()));
            settings.push(("log-bin", "log".to_owned()));
            settings.push(("read-only", "on".to_owned()));
        }
        if let Some((files, _)) = &self.tls {
            let names = ["ssl-cert", "ssl-key", "ssl-ca"];
            settings
                .extend(names.into_iter().zip(files.iter().map(|file| file.display().to_string())));
            settings.push(("require-secure-transport", "on".to_owned()));
        }
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let settings = settings.into_iter().chain(own);
        let flags: Vec<_> = ["--no-defaults".to_owned()]
            .into_iter()
            .chain(settings.map(|(name, value)| format!("--{name}={value}")))
            .collect();
        let name = format!("n{index}");
        let log = scratch.join(format!("{name}.log"));
        let environment = self.environment.clone();
        let launch = move || {
            let launch = Launch::new(PROGRAM, &log).clear_env().args(&flags);
            environment.iter().fold(launch, |launch, (name, to)| launch.env(name, to))
        };
        Node::start(name, address, launch)
    }
}

/// A running MariaDB. On drop, its processes are killed and its data are removed.
#[derive(Debug)]
pub struct Mysql {
    // The fields before `scratch` are dropped before it, so that the processes end before their directory is removed.
    nodes: Vec<Arc<Node>>,
    is_restricted: bool,
    scratch: Scratch,
}

impl Mysql {
    /// Whether MariaDB is installed on this machine.
    pub fn is_installed() -> bool {
        Path::new(PROGRAM).is_file()
    }

    /// One server, with default options.
    pub fn one() -> Self {
        Self::options().start()
    }

    /// The options with their default values, to be changed before the server is started.
    pub fn options() -> MysqlOptions {
        MysqlOptions::default()
    }

    /// The directory in which the nodes keep their data and their logs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Executes a statement on the first node, as the user who may do everything. Returns the answer: one line for each
    /// row, with a tab between columns.
    ///
    /// # Panics
    ///
    /// If the server refuses the statement or does not answer.
    pub fn ask(&self, statement: &str) -> String {
        let answer = self.try_ask(statement);
        answer.unwrap_or_else(|said| panic!("{statement}: {said}"))
    }

    /// Like [`ask`](Self::ask), but returns the server's message as an error.
    ///
    /// # Errors
    ///
    /// If the server refuses the statement or does not answer.
    pub fn try_ask(&self, statement: &str) -> Result<String, String> {
        self.try_ask_at(0, statement)
    }

    /// Like [`try_ask`](Self::try_ask), but on any node.
    ///
    /// # Errors
    ///
    /// If the node refuses the statement or does not answer.
    pub fn try_ask_at(&self, node: usize, statement: &str) -> Result<String, String> {
        ask(self.nodes[node].address(), USER, statement)
    }

    /// Executes a statement on the first node as this user, and returns the answer.
    ///
    /// # Errors
    ///
    /// If the server refuses the statement or does not answer.
    pub fn ask_as(&self, user: &str, statement: &str) -> Result<String, String> {
        ask(self.nodes[0].address(), user, statement)
    }

    /// All statements that the first node has received so far, from its log.
    pub fn statements(&self) -> String {
        fs::read(self.scratch.join("n0-statements"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Copies the data of the first node, as they are at this moment: it stands still meanwhile. To be called once.
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
        let replaced = fs::rename(&data, self.scratch.join("replaced"));
        replaced.expect("the data are restored once");
        copy(&self.scratch.join(SAVED), &data);
        self.nodes[0].restart();
        wait_ready(&self.nodes[0]);
    }

    /// Makes a replica the primary, as an operator does who has given up the old one.
    ///
    /// # Panics
    ///
    /// If the replica refuses.
    pub fn promote(&self, node: usize) {
        let promoted = format!("STOP SLAVE; RESET SLAVE ALL; {WRITABLE}");
        self.try_ask_at(node, &promoted).expect("it is made the primary");
    }

    /// Makes a node replicate from the server at this address, from the beginning of that server's log.
    fn replicate(&self, node: usize, primary: SocketAddr) {
        let begin = format!(
            "CHANGE MASTER TO master_host = '{}', master_port = {}, master_user = '{USER}'; START SLAVE",
            primary.ip(),
            primary.port()
        );
        self.try_ask_at(node, &begin).expect("it is a replica");
    }
}

fn ask(address: SocketAddr, user: &str, statement: &str) -> Result<String, String> {
    let mut command = Command::new("mariadb");
    command.env_clear().args(["--no-defaults", "--batch", "--raw", "--skip-column-names"]);
    command.args(["--connect-timeout=2", "--default-character-set=utf8mb4"]);
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    command.args(["-h", &host, "-P", &port, "-u", user, "-e", statement]);
    let answer = command.output().expect("MariaDB is installed: see tests/install");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match answer.status.success() {
        true => Ok(text(&answer.stdout)),
        false => Err(text(&answer.stderr)),
    }
}

fn wait_ready(node: &Node) {
    let is_ready = || {
        let said = ask(node.address(), USER, "SELECT 1");
        // A server that refuses this connection only because it demands TLS is ready too.
        let serves = |said: String| said.contains("Access denied");
        !node.is_running() || said.is_ok() || said.is_err_and(serves)
    };
    assert!(super::wait_until(READY, is_ready), "not ready: {}", node.log());
}

/// The path of a data directory that no server has used yet, to be copied.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = TEMPLATE.get_or_init(|| {
        let scratch = Scratch::new("mysql-template");
        let path = scratch.join("data");
        let mut command = Command::new("mariadb-install-db");
        command.arg("--no-defaults").arg(format!("--datadir={}", path.display()));
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        command.args(["--skip-name-resolve", "--innodb-log-file-size=4M"]);
        if is_root() {
            command.arg("--user=root");
        }
        run(&mut command);
        (scratch, path)
    });
    path
}

fn copy(data: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(data).arg(to));
}

fn run(command: &mut Command) {
    let done = command.output().expect("MariaDB is installed: see tests/install");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
