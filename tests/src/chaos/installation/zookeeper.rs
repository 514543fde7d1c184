//! ZooKeeper under chaos. It has only the faults that all servers have.

use std::{path::Path, time::Duration};

use super::super::nemesis::Fault;
use super::servers::Own;
use crate::harness::{Server, Zookeeper};

#[derive(Debug)]
pub(super) struct Operator(Zookeeper);

impl Own for Operator {
    fn server(&self) -> &dyn Server {
        &self.0
    }

    fn data(&self) -> &Path {
        self.0.directory()
    }

    fn strike(&self, fault: Fault, _length: Duration) {
        unreachable!("{fault:?} does not happen on ZooKeeper")
    }

    /// Restarts the leader if the ensemble serves reads but commits no write. The ensemble may get into this state when
    /// several followers join at the same moment, and does not leave it by itself: a follower may acknowledge a
    /// proposal before it has reported that it has caught up, and the leader ignores this acknowledgement
    /// (ZOOKEEPER-4685, 4394; seen with 3.8.0). An operator would have to restart the leader too.
    fn mend(&self) -> bool {
        if self.serves() && !self.0.commits() {
            let leader = self.0.leader_index().map(|index| self.0.node(index));
            leader.inspect(|node| println!("{} leads, and nothing is committed", node.address()));
            leader.inspect(|node| node.kill()).inspect(|node| node.restart());
        }
        true
    }

    fn is_well(&self) -> bool {
        self.serves() && self.0.commits()
    }

    /// The sessions that own an ephemeral node. A session that owns none ends at its timeout, and has no effect until
    /// then.
    fn sessions(&self) -> Vec<String> {
        let leader = self.0.leader_index().unwrap_or_default();
        let dump = self.0.ask(leader, "dump").unwrap_or_default();
        let owners = dump.split("Sessions with Ephemerals").nth(1).unwrap_or_default();
        let sessions = owners.lines().filter(|line| line.starts_with("0x") && line.ends_with(':'));
        sessions.map(|session| format!("session {}", session.trim_end_matches(':'))).collect()
    }
}

impl Operator {
    fn serves(&self) -> bool {
        let nodes = self.0.nodes();
        (0..nodes.len()).all(|index| nodes[index].is_running() && self.0.mode(index).is_some())
    }

    pub(super) fn start(nodes: usize) -> Self {
        let options = Zookeeper::options().nodes(nodes);
        Self(if nodes > 1 { options.peers_by_proxy().start() } else { options.start() })
    }
}
