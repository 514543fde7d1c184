//! The store, how clients reach it, and what an operator can do to it by hand.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::Value;

use super::{Store, things::Group};
use crate::harness::{Etcd, Mounted, Proxy, wait_until};

/// Where a run takes place.
#[derive(Debug)]
pub(super) enum Site {
    Etcd(Box<Servers>),
    File(Directory),
}

/// Room for what a round writes, and small enough to be filled up in a moment.
const QUOTA: u64 = 64 << 20;
/// How long servers may take to be well again.
const READY: Duration = Duration::from_secs(20);

impl Site {
    pub(super) fn new(store: Store, seats: usize) -> Self {
        match store {
            Store::File => Self::File(Directory { disk: Mounted::new("size=64m") }),
            Store::Etcd => Self::Etcd(Box::new(Servers::start(1, seats))),
            Store::Etcd3 => Self::Etcd(Box::new(Servers::start(3, seats))),
        }
    }

    /// The group's URL for the client in this seat.
    pub(super) fn url(&self, seat: usize, group: Group) -> String {
        match self {
            Self::Etcd(servers) => {
                let links = servers.links[seat].iter().map(|link| link.address().to_string());
                format!("etcd://{}/{}", links.collect::<Vec<_>>().join(","), group.name())
            }
            Self::File(directory) => directory.url(group),
        }
    }

    /// The group's URL for the driver, whom no fault strikes.
    pub(super) fn own_url(&self, group: Group) -> String {
        match self {
            Self::Etcd(servers) => format!("etcd://{}/{}", servers.etcd.authority(), group.name()),
            Self::File(directory) => directory.url(group),
        }
    }

    /// Undoes whatever a fault may have left.
    ///
    /// # Errors
    ///
    /// It does not become well.
    pub(super) fn heal(&self) -> Result<(), String> {
        match self {
            Self::Etcd(servers) => servers.heal(),
            Self::File(_) => Ok(()),
        }
    }

    /// What clients that have stopped left of their sessions.
    pub(super) fn sessions(&self) -> Vec<String> {
        match self {
            Self::Etcd(servers) => {
                let leases = servers.etcd.lease_ids();
                leases.iter().map(|lease| format!("lease {lease:x}")).collect()
            }
            Self::File(directory) => directory.sessions(),
        }
    }

    /// Where the store's data and logs are.
    pub(super) fn data(&self) -> &Path {
        match self {
            Self::Etcd(servers) => servers.etcd.directory(),
            Self::File(directory) => directory.disk.path(),
        }
    }
}

/// etcd, and a proxy to each node for each client.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) links: Vec<Vec<Proxy>>,
    pub(super) etcd: Etcd,
}

impl Servers {
    fn start(nodes: usize, seats: usize) -> Self {
        let quota = format!("--quota-backend-bytes={QUOTA}");
        let etcd = Etcd::options().nodes(nodes).peers_by_proxy().flag(quota).start();
        let link = |_| etcd.nodes().iter().map(|node| Proxy::start(node.address())).collect();
        Self { links: (0..seats).map(link).collect(), etcd }
    }

    /// `etcdctl`, which may fail when the servers are broken.
    fn ask(&self, arguments: &[&str]) -> Output {
        self.etcd.etcdctl(&[&["--command-timeout=1s", "--dial-timeout=1s"], arguments].concat())
    }

    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let answer = self.ask(arguments).stdout;
        let answer = String::from_utf8_lossy(&answer);
        answer.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Forgets all history.
    pub(super) fn compact(&self) {
        if let Some(revision) = self.revision() {
            self.ask(&["compact", &revision]);
        }
    }

    /// The store's own clock.
    fn revision(&self) -> Option<String> {
        let read = self.lines(&["get", "--write-out=fields", "chaos"]).join("\n");
        let revision = read.split("\"Revision\" : ").nth(1)?.lines().next()?;
        Some(revision.to_owned())
    }

    /// Rewrites the files of the nodes, one after the other.
    pub(super) fn defragment(&self) {
        self.ask(&["defrag"]);
    }

    /// Uses up the quota; answers whether that worked.
    pub(super) fn fill(&self) -> bool {
        // Almost as much as a request may have.
        let value = vec![b'x'; 1_400 << 10];
        let until = Instant::now() + Duration::from_secs(10);
        for index in 0.. {
            let put = self.etcd.put_large(&format!("chaos-filler/{index}"), &value);
            if String::from_utf8_lossy(&put.stderr).contains("space exceeded") {
                return true;
            }
            if !put.status.success() || Instant::now() > until {
                break;
            }
        }
        false
    }

    /// Makes room, and says that there is: a node whose file stays large would raise the alarm again.
    fn make_room(&self) -> bool {
        let patient = |arguments: &[&str]| {
            self.etcd.etcdctl(&[&["--command-timeout=10s"], arguments].concat()).status.success()
        };
        self.ask(&["del", "--prefix", "chaos-filler/"]);
        if let Some(revision) = self.revision() {
            // Fails when it was done before.
            patient(&["compact", "--physical", &revision]);
        }
        patient(&["defrag"])
            && self.sizes().iter().all(|size| *size < QUOTA / 2)
            && patient(&["alarm", "disarm"])
            && self.has_no_alarm()
    }

    /// Whether the servers say so: one that does not answer may have any.
    fn has_no_alarm(&self) -> bool {
        let listed = self.ask(&["alarm", "list"]);
        listed.status.success() && listed.stdout.trim_ascii().is_empty()
    }

    /// How large the nodes' files are, in bytes.
    fn sizes(&self) -> Vec<u64> {
        let status = self.lines(&["endpoint", "status", "--write-out=json"]).join("");
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let nodes = status.as_array().into_iter().flatten();
        let sizes = nodes.map(|node| node["Status"]["dbSize"].as_u64().unwrap_or(QUOTA));
        let mut sizes: Vec<_> = sizes.collect();
        // One that does not answer may have any size.
        sizes.resize(self.etcd.nodes().len(), QUOTA);
        sizes
    }

    pub(super) fn free(&self) {
        wait_until(READY, || self.make_room());
    }

    /// Ends the session of somebody in the group.
    pub(super) fn revoke(&self, group: Group, rng: &mut StdRng) {
        let prefix = format!("{}/member/", group.name());
        let leases = self.lines(&["get", "--prefix", "--print-value-only", "--", &prefix]);
        if let Some(lease) = leases.choose(rng) {
            self.ask(&["lease", "revoke", lease.trim()]);
        }
    }

    /// Deletes an entry of the group.
    pub(super) fn delete(&self, group: Group, rng: &mut StdRng) {
        let prefix = format!("{}/", group.name());
        let keys = self.lines(&["get", "--prefix", "--keys-only", "--", &prefix]);
        let is_entry = |key: &&String| !key.ends_with('!') && !key.contains("/member/");
        let entries: Vec<_> = keys.iter().filter(is_entry).collect();
        if let Some(entry) = entries.choose(rng) {
            self.ask(&["del", "--", entry]);
        }
    }

    /// A node that leads, or one that does not.
    pub(super) fn pick(&self, leads: bool, rng: &mut StdRng) -> usize {
        let leader = self.etcd.leader_index();
        let count = self.etcd.nodes().len();
        match leader {
            Some(leader) if leads => leader,
            Some(leader) => (leader + rng.random_range(1..count)) % count,
            None => rng.random_range(0..count),
        }
    }

    /// Starts what does not run, and waits until all answer.
    pub(super) fn revive(&self) {
        for node in self.etcd.nodes() {
            node.resume();
            if !node.is_running() {
                node.restart();
            }
        }
        wait_until(READY, || self.is_well());
    }

    fn is_well(&self) -> bool {
        self.etcd.nodes().iter().all(|node| node.is_running() && node.is_healthy())
    }

    fn heal(&self) -> Result<(), String> {
        self.links.iter().flatten().for_each(Proxy::heal);
        self.etcd.rejoin();
        self.revive();
        self.free();
        match wait_until(READY, || self.is_well() && self.has_no_alarm()) {
            true => Ok(()),
            false => Err("the servers are not well again".to_owned()),
        }
    }
}

/// A directory for each group, on a small disk of their own.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) disk: Mounted,
}

impl Directory {
    fn url(&self, group: Group) -> String {
        format!("file://{}", self.of(group).display())
    }

    pub(super) fn of(&self, group: Group) -> PathBuf {
        self.disk.path().join(group.name())
    }

    /// What the library keeps there.
    pub(super) fn inside(&self, group: Group, folder: &str) -> PathBuf {
        self.of(group).join("coordination").join(folder)
    }

    /// One of the files in it.
    pub(super) fn some_file(folder: &Path, rng: &mut StdRng) -> Option<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
        files.sort();
        files.choose(rng).cloned()
    }

    /// Locks a queue's file as `flock(1)` does, for so long.
    pub(super) fn hold_queue(&self, length: Duration, rng: &mut StdRng) {
        let queue = Self::some_file(&self.inside(Group::Judged, "queues"), rng);
        // What is gone by now holds up nobody.
        if let Some(file) = queue.and_then(|path| File::open(path).ok()) {
            file.lock().expect("what is open can be locked, once it is free");
            thread::sleep(length);
        }
    }

    fn sessions(&self) -> Vec<String> {
        let folders = Group::ALL
            .into_iter()
            .flat_map(|group| ["sessions", "members"].map(|folder| self.inside(group, folder)));
        let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        files.map(|file| file.path().display().to_string()).collect()
    }
}

/// Makes of `to`, which is not there, a copy for whoever looks into a failure.
///
/// # Errors
///
/// Why there is none, or only a part.
pub(super) fn keep(from: &Path, to: &Path) -> Result<(), String> {
    // A hundred megabytes of zeros otherwise: etcd takes room for its log in advance.
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(from).arg(to).output();
    let error = match copied {
        Ok(copied) if copied.status.success() => return Ok(()),
        Ok(copied) => String::from_utf8_lossy(&copied.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{} is not all there: {error}", to.display()))
}
