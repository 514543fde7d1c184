//! etcd under chaos. Its own faults are that its history is compacted, and that its quota is used up.

use std::{
    path::Path,
    process::Output,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::super::nemesis::Fault;
use super::servers::{Own, READY};
use crate::harness::{Etcd, Server, wait_until};

/// The quota is enough for what a round writes, and so small that a fault can use it up in a moment.
const QUOTA: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Operator(Etcd);

impl Own for Operator {
    fn server(&self) -> &dyn Server {
        &self.0
    }

    fn data(&self) -> &Path {
        self.0.directory()
    }

    fn strike(&self, fault: Fault, length: Duration) {
        match fault {
            Fault::Compaction => {
                let until = Instant::now() + length;
                while Instant::now() < until {
                    self.compact();
                    thread::sleep(Duration::from_millis(100));
                }
                // Makes the nodes rewrite their files, one after the other.
                self.ask(&["defrag"]);
            }
            Fault::NoSpace => {
                if !self.fill() {
                    println!("the quota was not reached: this time \"no space\" was none");
                }
                thread::sleep(length);
                wait_until(READY, || self.make_room());
            }
            other => unreachable!("{other:?} does not happen on etcd"),
        }
    }

    fn mend(&self) -> bool {
        self.make_room()
    }

    fn is_well(&self) -> bool {
        self.0.nodes().iter().all(|node| node.is_running() && node.is_healthy())
    }

    fn sessions(&self) -> Vec<String> {
        self.0.lease_ids().iter().map(|lease| format!("lease {lease:x}")).collect()
    }
}

impl Operator {
    pub(super) fn start(nodes: usize) -> Self {
        let quota = format!("--quota-backend-bytes={QUOTA}");
        Self(Etcd::options().nodes(nodes).peers_by_proxy().flag(quota).start())
    }

    /// Runs `etcdctl`, which may fail while servers are broken.
    fn ask(&self, arguments: &[&str]) -> Output {
        self.0.etcdctl(&[&["--command-timeout=1s", "--dial-timeout=1s"], arguments].concat())
    }

    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let answer = self.ask(arguments).stdout;
        let answer = String::from_utf8_lossy(&answer);
        answer.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Compacts all revisions up to the present one.
    fn compact(&self) {
        if let Some(revision) = self.revision() {
            self.ask(&["compact", &revision]);
        }
    }

    /// The store's present revision; `None` if no node answers.
    fn revision(&self) -> Option<String> {
        let read = self.lines(&["get", "--write-out=fields", "chaos"]).join("\n");
        let revision = read.split("\"Revision\" : ").nth(1)?.lines().next()?;
        Some(revision.to_owned())
    }

    /// Uses up the quota. Returns whether it succeeded.
    fn fill(&self) -> bool {
        // With a value of this size, the request is almost as large as etcd allows.
        let value = vec![b'x'; 1_400 << 10];
        let until = Instant::now() + Duration::from_secs(10);
        for index in 0.. {
            let put = self.0.put_large(&format!("chaos-filler/{index}"), &value);
            if String::from_utf8_lossy(&put.stderr).contains("space exceeded") {
                return true;
            }
            if !put.status.success() || Instant::now() > until {
                break;
            }
        }
        false
    }

    /// Deletes the filler, makes the files smaller, and disarms the alarm. Returns whether all of these succeeded. As
    /// long as the file of a node is large, the node would raise the alarm again.
    fn make_room(&self) -> bool {
        let patient = |arguments: &[&str]| {
            self.0.etcdctl(&[&["--command-timeout=10s"], arguments].concat()).status.success()
        };
        self.ask(&["del", "--prefix", "chaos-filler/"]);
        if let Some(revision) = self.revision() {
            // This fails if the revision has been compacted before, which does not matter.
            patient(&["compact", "--physical", &revision]);
        }
        patient(&["defrag"])
            && self.sizes().iter().all(|size| *size < QUOTA / 2)
            && patient(&["alarm", "disarm"])
            && self.has_no_alarm()
    }

    /// Whether the servers report no alarm; false if they do not answer.
    fn has_no_alarm(&self) -> bool {
        let listed = self.ask(&["alarm", "list"]);
        listed.status.success() && listed.stdout.trim_ascii().is_empty()
    }

    /// The sizes of the files of all nodes, in bytes.
    fn sizes(&self) -> Vec<u64> {
        let status = self.lines(&["endpoint", "status", "--write-out=json"]).join("");
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let nodes = status.as_array().into_iter().flatten();
        let sizes = nodes.map(|node| node["Status"]["dbSize"].as_u64().unwrap_or(QUOTA));
        let mut sizes: Vec<_> = sizes.collect();
        // A node that does not answer counts as full, so that its file is not taken for small.
        sizes.resize(self.0.nodes().len(), QUOTA);
        sizes
    }
}
