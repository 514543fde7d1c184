//! What an administrator does to etcd without the clients' knowledge, by `etcdctl`.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::super::{Launch, Node as Process, ports::free_address, wait_until};
use super::{Etcd, ROOT, ROOT_PASSWORD, USER, USER_PASSWORD};

/// A key that [`Etcd::compact`] writes, so that the store has a new revision to compact. It is outside the namespaces
/// of all tests.
const COMPACTION_KEY: &str = "harness-compaction";

impl Etcd {
    /// Runs `etcdctl` against the running nodes, as the administrator. Blocks.
    ///
    /// `etcdctl` accepts any certificate that the server presents, even a wrong one.
    ///
    /// # Panics
    ///
    /// If `etcdctl` cannot be started. If `etcdctl` itself fails, its error is in the output.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        let mut command = self.plain_etcdctl();
        if let Some(tls) = &self.options.tls {
            command.arg("--insecure-skip-tls-verify");
            command.arg("--cacert").arg(&tls.authority);
            command.arg("--cert").arg(&tls.client.certificate);
            command.arg("--key").arg(&tls.client.key);
        }
        if self.users_on {
            command.arg(format!("--user={ROOT}:{ROOT_PASSWORD}"));
        }
        run(command.args(arguments))
    }

    /// Runs `etcdctl` without a user and without certificates, with only the endpoints and `arguments`.
    pub fn etcdctl_as_stranger(&self, arguments: &[&str]) -> Output {
        run(self.plain_etcdctl().args(arguments))
    }

    /// Runs `etcdctl` like [`Etcd::etcdctl`], and returns its standard output.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn administer(&self, arguments: &[&str]) -> String {
        let output = self.etcdctl(arguments);
        assert!(
            output.status.success(),
            "etcdctl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Saves a snapshot of the store to this file.
    ///
    /// # Panics
    ///
    /// If `etcdctl` fails.
    pub fn save(&self, snapshot: &Path) {
        self.administer(&["snapshot", "save", &snapshot.display().to_string()]);
    }

    /// Restores the only node from a snapshot, as an operator does it: kills the node, replaces its data directory, and
    /// starts it again.
    ///
    /// # Panics
    ///
    /// If a step fails.
    pub fn restore(&self, snapshot: &Path) {
        self.restore_after(snapshot, Duration::ZERO);
    }

    /// Does what [`restore`](Self::restore) does. The node is away for so long before.
    ///
    /// # Panics
    ///
    /// If a step fails.
    pub fn restore_after(&self, snapshot: &Path, away: Duration) {
        let members = self.administer_json(&["member", "list"]);
        let member = &members["members"][0];
        let text = |value: &Value| value.as_str().expect("a member has both").to_owned();
        let (name, peer) = (text(&member["name"]), text(&member["peerURLs"][0]));
        let node = self.node(0);
        node.kill();
        thread::sleep(away);
        let data = self.scratch.join(&name);
        std::fs::remove_dir_all(&data).expect("its data are there");
        let status = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore", &snapshot.display().to_string()])
            .arg(format!("--name={name}"))
            .arg(format!("--initial-cluster={name}={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--data-dir={}", data.display()))
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("etcdctl is installed: checked at start").success());
        node.restart();
        self.wait_ready();
    }

    /// The ids of all leases.
    pub fn lease_ids(&self) -> Vec<i64> {
        self.administer(&["lease", "list"])
            .lines()
            .filter_map(|line| i64::from_str_radix(line.trim(), 16).ok())
            .collect()
    }

    /// In how many seconds the lease ends if it is not renewed; `None` if there is no such lease.
    pub fn lease_remaining(&self, id: i64) -> Option<u64> {
        let answer = self.administer_json(&["lease", "timetolive", &format!("{id:x}")]);
        // If the lease has ended, the number is negative, and `as_u64` returns `None`.
        answer["ttl"].as_u64()
    }

    /// The keys that begin with `prefix`, sorted. Keys with a line break would be returned in parts.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.administer(&["get", "--prefix", "--keys-only", "--", prefix])
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Writes a value that may be too large for a command line. If `etcdctl` fails, its error is in the output.
    ///
    /// # Panics
    ///
    /// When `etcdctl` cannot be started.
    pub fn put_large(&self, key: &str, value: &[u8]) -> Output {
        let mut command = self.plain_etcdctl();
        run_with(command.args(["--command-timeout=2s", "put", key]), value)
    }

    /// Gives [`USER`] another password.
    ///
    /// # Panics
    ///
    /// If `etcdctl` fails.
    pub fn change_password(&self, password: &str) {
        let mut command = self.plain_etcdctl();
        command.arg(format!("--user={ROOT}:{ROOT_PASSWORD}"));
        command.args(["user", "passwd", USER, "--interactive=false"]);
        let output = run_with(&mut command, password.as_bytes());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the password stays: {message}");
    }

    /// Deletes a key; returns false if it did not exist.
    pub fn delete_key(&self, key: &str) -> bool {
        self.administer(&["del", "--", key]).trim() == "1"
    }

    /// Revokes all leases, which deletes all keys that are attached to them. Returns how many leases it has revoked.
    pub fn revoke_all_leases(&self) -> usize {
        let leases = self.lease_ids();
        leases.iter().filter(|id| self.revoke_lease(**id)).count()
    }

    /// Revokes a lease; returns false if it did not exist.
    pub fn revoke_lease(&self, id: i64) -> bool {
        let output = self.etcdctl(&["lease", "revoke", &format!("{id:x}")]);
        output.status.success()
    }

    /// For each node, in the order of `nodes`, its id as a member of the cluster, in hexadecimal.
    pub(super) fn member_ids(&self) -> Vec<String> {
        // Each line of the list begins with a node's id, state and name: `8211f1d0f64f3269, started, n0, …`
        let list = self.administer(&["member", "list"]);
        let rows: Vec<Vec<_>> = list.lines().map(|row| row.split(", ").collect()).collect();
        let id = |name: &str| rows.iter().find(|row| row.get(2) == Some(&name)).map(|row| row[0]);
        let ids = self.nodes().iter().map(|node| id(node.name()).expect("every node is a member"));
        ids.map(str::to_owned).collect()
    }

    /// Adds a learner to a cluster of one node, and starts it. A learner answers serializable reads, but refuses
    /// linearizable ones.
    ///
    /// # Panics
    ///
    /// If the learner does not start.
    pub fn start_learner(&self) -> Process {
        let (peer, client) = (free_address(), free_address());
        let peer = format!("http://{peer}");
        let first = self.administer_json(&["member", "list"])["members"][0]["peerURLs"][0].clone();
        let first = first.as_str().expect("a member has one").to_owned();
        self.administer(&["member", "add", "learner", "--learner", &format!("--peer-urls={peer}")]);
        let flags = vec![
            "--name=learner".to_owned(),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={}={first},learner={peer}", self.node(0).name()),
            "--initial-cluster-state=existing".to_owned(),
            format!("--data-dir={}", self.scratch.join("learner").display()),
        ];
        let log = self.scratch.join("learner.log");
        let launch = move || Launch::new("etcd", &log).clear_env().args(&flags);
        let learner = Process::start("learner", client, launch);
        let runs = || {
            let mut read = Command::new("etcdctl");
            read.arg(format!("--endpoints={client}")).args(["get", "--consistency=s", "x"]);
            run(&mut read).status.success()
        };
        assert!(wait_until(Duration::from_secs(10), runs), "{}", learner.log());
        learner
    }

    /// Removes all old revisions of the store. After that, a watch or a read at an older revision fails.
    pub fn compact(&self) {
        // Compacting the same revision a second time is an error, so this first makes a new revision.
        let put = self.administer_json(&["put", COMPACTION_KEY, "now"]);
        let revision = put["header"]["revision"].as_i64().expect("each answer tells the revision");
        self.administer(&["compact", "--physical", &revision.to_string()]);
    }

    /// Creates the administrator and the client's user, and turns authentication on.
    pub(super) fn enable_users(&mut self) {
        let prefix = self.options.user_prefix.clone().unwrap_or_default();
        let root = format!("{ROOT}:{ROOT_PASSWORD}");
        let user = format!("{USER}:{USER_PASSWORD}");
        for arguments in [
            ["user", "add", &root].as_slice(),
            &["role", "add", ROOT],
            &["user", "grant-role", ROOT, ROOT],
            &["user", "add", &user],
            &["role", "add", USER],
            &["role", "grant-permission", "--prefix=true", USER, "readwrite", &prefix],
            &["user", "grant-role", USER, USER],
            &["auth", "enable"],
        ] {
            self.administer(arguments);
        }
        self.users_on = true;
    }

    fn administer_json(&self, arguments: &[&str]) -> Value {
        let output = self.administer(&[&["--write-out=json"], arguments].concat());
        serde_json::from_str(&output).expect("etcdctl was asked for JSON")
    }

    fn plain_etcdctl(&self) -> Command {
        let mut command = Command::new("etcdctl");
        let endpoints: Vec<_> = self
            .client_urls()
            .into_iter()
            .zip(self.nodes())
            .filter(|(_, node)| node.is_running())
            .map(|(url, _)| url)
            .collect();
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", endpoints.join(",")));
        command
    }
}

/// Runs the command with this standard input.
fn run_with(command: &mut Command, input: &[u8]) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("etcdctl is installed: checked at start");
    // Writing fails if the command has ended early. Then the command's output says why.
    let _ = child.stdin.take().expect("it is piped").write_all(input);
    child.wait_with_output().expect("the child is ours to wait for")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("etcdctl is installed: checked at start")
}
