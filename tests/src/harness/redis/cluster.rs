//! The nodes of a Redis cluster. Moves slots, the parts into which the keys of a cluster are divided, between the
//! nodes.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use super::super::restless::Restless;
use super::super::{Node, wait_until};
use super::{READY, Reply, ask};

/// How many keys of a slot move first. Until the other keys follow, the keys of the slot are divided between two nodes.
const FIRST: usize = 3;
/// In the setting in which slots move all the time: how long the keys of a slot stay divided between two nodes.
const HALF_WAY: Duration = Duration::from_millis(20);
/// The number of hash slots of a Redis cluster.
const SLOTS: usize = 16_384;

/// The addresses of a cluster's nodes: first those of the masters, then those of their replicas.
pub(super) struct Cluster {
    nodes: Vec<SocketAddr>,
    /// Locked while a slot moves. A command of the harness locks it too, so that the slot of its key does not move
    /// meanwhile.
    pub(super) moving: Mutex<()>,
}

impl Cluster {
    /// Forms a cluster of these empty nodes. The first `masters` nodes become masters, which share the slots. The
    /// others become their replicas.
    pub(super) fn form(nodes: &[Arc<Node>], buses: &[u16], masters: usize) -> Self {
        let cluster = Self {
            nodes: nodes.iter().map(|node| node.address()).collect(),
            moving: Mutex::default(),
        };
        for index in 0..masters {
            let (from, to) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
            cluster.tell(index, &["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
            cluster.tell(index, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        let first = cluster.nodes[0];
        let (host, port) = (first.ip().to_string(), first.port().to_string());
        for index in 1..cluster.nodes.len() {
            cluster.tell(index, &["CLUSTER", "MEET", &host, &port, &buses[0].to_string()]);
        }
        cluster.wait_ready();
        for index in masters..cluster.nodes.len() {
            let master = cluster.id(index % masters).expect("it answers");
            let follows = || {
                let told = cluster.ask(index, &["CLUSTER", "REPLICATE", &master]);
                told.is_ok_and(|reply| !matches!(reply, Reply::Error(_)))
            };
            assert!(wait_until(READY, follows), "no replica");
            let is_up = || {
                let info =
                    cluster.ask(index, &["INFO", "replication"]).ok().and_then(|info| info.text());
                info.is_some_and(|info| info.contains("master_link_status:up"))
            };
            assert!(wait_until(READY, is_up), "no replica");
        }
        // Waits until every node knows all replicas.
        for index in 0..cluster.nodes.len() {
            let are_known = || {
                let nodes =
                    cluster.ask(index, &["CLUSTER", "NODES"]).ok().and_then(|nodes| nodes.text());
                nodes.is_some_and(|nodes| {
                    nodes.matches("slave ").count() == cluster.nodes.len() - masters
                })
            };
            assert!(wait_until(READY, are_known), "a replica is not known");
        }
        cluster
    }

    /// Waits until each node knows all others, and says that the cluster serves clients.
    pub(super) fn wait_ready(&self) {
        let count = format!("cluster_known_nodes:{}", self.nodes.len());
        for index in 0..self.nodes.len() {
            let is_ready = || {
                let info = self.ask(index, &["CLUSTER", "INFO"]).ok().and_then(|info| info.text());
                info.is_some_and(|info| info.contains("cluster_state:ok") && info.contains(&count))
            };
            assert!(wait_until(READY, is_ready), "the cluster is not up");
        }
    }

    /// Sends a command to one node after the other, as long as the nodes refuse it because the key is on another node.
    /// Returns the answer of the first node that does not refuse it for this reason.
    pub(super) fn ask_owner(&self, command: &[&str]) -> io::Result<Reply> {
        let _still = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = Err(io::ErrorKind::NotFound.into());
        for index in 0..self.nodes.len() {
            last = self.ask(index, command);
            let is_elsewhere = |text: &String| {
                ["MOVED", "CLUSTERDOWN"].iter().any(|code| text.starts_with(code))
                    || text.contains("non local key")
            };
            match &last {
                Ok(Reply::Error(text)) if is_elsewhere(text) => {}
                _ => break,
            }
        }
        last
    }

    /// The index of the node that has the slot of this key.
    pub(super) fn owner(&self, key: &str) -> Option<usize> {
        let is_here =
            |index: &usize| matches!(self.ask(*index, &["EXISTS", key]), Ok(Reply::Number(_)));
        (0..self.nodes.len()).find(is_here)
    }

    /// Moves the slot of this key to another node, with all keys in it.
    ///
    /// In between, the keys are divided between the two nodes for the time `half_way`.
    pub(super) fn move_slot(&self, key: &str, to: usize, half_way: Duration) -> io::Result<()> {
        let _one_at_a_time = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(from) = self.owner(key).filter(|from| *from != to) else { return Ok(()) };
        let slot = self.slot(from, key)?;
        self.carry(&slot, from, to, half_way)
    }

    fn carry(&self, slot: &str, from: usize, to: usize, half_way: Duration) -> io::Result<()> {
        let (old, new) = (self.id(from)?, self.id(to)?);
        self.ask(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &old])?;
        self.ask(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &new])?;
        let (host, port) = (self.nodes[to].ip().to_string(), self.nodes[to].port().to_string());
        for turn in 0.. {
            let mut keys = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", slot, "100"])?.texts();
            if keys.is_empty() {
                break;
            }
            // The keys of sessions move first. So while the keys are divided, a script on the old node finds no
            // session, and the library must not conclude from this that the session is over.
            keys.sort_by_key(|key| !key.contains(":session"));
            keys.truncate(if turn == 0 { FIRST } else { keys.len() });
            let mut command = vec!["MIGRATE", &host, &port, "", "0", "1000", "REPLACE", "KEYS"];
            command.extend(keys.iter().map(String::as_str));
            accepted(self.ask(from, &command)?)?;
            if turn == 0 {
                sleep(half_way);
            }
        }
        // When a node gets a slot, it takes an epoch (a version number) that is higher than all epochs that it knows.
        // If the new node did not know the old node's epoch yet, the new node's epoch could be lower. Then an older
        // message of the old node, which still claims the slot, would make the new node give the slot back and forget
        // the keys in it. So this waits until the new node knows the old node's epoch.
        let is_heard_of = || {
            let (mine, known) =
                (self.epoch(from, "cluster_my_epoch"), self.epoch(to, "cluster_current_epoch"));
            matches!((mine, known), (Some(mine), Some(known)) if mine <= known)
        };
        if !wait_until(READY, is_heard_of) {
            return Err(io::Error::other("the nodes do not hear of each other"));
        }
        // The new node gets the command first. Until the old node gets it too, the old node redirects clients to the
        // new one, which has all keys by then.
        let tell = |index| self.ask(index, &["CLUSTER", "SETSLOT", slot, "NODE", &new]);
        accepted(tell(to)?)?;
        accepted(tell(from)?)?;
        // The other nodes would also learn of the move by themselves, but later. Errors are ignored, because one of
        // these nodes may be dead.
        (0..self.nodes.len()).filter(|index| ![to, from].contains(index)).for_each(|index| {
            let _ = tell(index);
        });
        Ok(())
    }

    /// For each namespace in which a client has a session, moves its slot to the next node. `unfinished` is the move
    /// that failed in an earlier call; it is finished first.
    fn move_all(&self, unfinished: &mut Option<(String, usize, usize)>) -> io::Result<()> {
        let _one_at_a_time = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((slot, from, to)) = unfinished {
            self.carry(slot, *from, *to, HALF_WAY)?;
            *unfinished = None;
        }
        for (slot, from) in self.live_slots()? {
            let to = (from + 1) % self.nodes.len();
            *unfinished = Some((slot.clone(), from, to));
            self.carry(&slot, from, to, HALF_WAY)?;
            *unfinished = None;
        }
        Ok(())
    }

    fn live_slots(&self) -> io::Result<BTreeSet<(String, usize)>> {
        let mut found = BTreeSet::new();
        for index in 0..self.nodes.len() {
            let now: f64 = number(self.ask(index, &["TIME"])?.texts().first()) * 1e6;
            for key in self.ask(index, &["KEYS", "*:sessions"])?.texts() {
                let last = self.ask(index, &["ZREVRANGE", &key, "0", "0", "WITHSCORES"])?;
                if number(last.texts().get(1)) > now {
                    found.insert((self.slot(index, &key)?, index));
                }
            }
        }
        Ok(found)
    }

    fn slot(&self, node: usize, key: &str) -> io::Result<String> {
        let slot = self.ask(node, &["CLUSTER", "KEYSLOT", key])?.text();
        slot.ok_or_else(|| io::Error::other("no slot"))
    }

    fn epoch(&self, index: usize, which: &str) -> Option<u64> {
        let info = self.ask(index, &["CLUSTER", "INFO"]).ok()?.text()?;
        let line = info.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    }

    fn id(&self, index: usize) -> io::Result<String> {
        let id = self.ask(index, &["CLUSTER", "MYID"])?.text();
        id.ok_or_else(|| io::Error::other("no id"))
    }

    fn ask(&self, index: usize, command: &[&str]) -> io::Result<Reply> {
        ask(self.nodes[index], None, command)
    }

    fn tell(&self, index: usize, command: &[&str]) {
        match self.ask(index, command) {
            Ok(Reply::Error(error)) => panic!("{command:?}: {error}"),
            Ok(_) => {}
            Err(error) => panic!("{command:?}: {error}"),
        }
    }
}

/// Turns a server's refusal into an error.
fn accepted(reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Error(error) => Err(io::Error::other(error)),
        _ => Ok(()),
    }
}

fn number(text: Option<&String>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Starts a thread that once a second moves the slots of all namespaces that are in use.
pub(super) fn move_slots(cluster: Arc<Cluster>) -> Restless {
    let mut unfinished = None;
    Restless::start(move || {
        // If a move fails, the next second's call finishes it.
        let _ = cluster.move_all(&mut unfinished);
    })
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cluster").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}
