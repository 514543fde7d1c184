//! What a server says about other servers: its replicas, and the nodes of its cluster.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::Value;

use crate::url::Host;

/// If a cluster was last asked for its nodes longer ago than this, the next heartbeat asks again.
const OLD: Duration = Duration::from_secs(10);

/// What a server says about its replicas, and whether it is a node of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) is_cluster: bool,
    /// How many replicas have to confirm a grant or a heartbeat before it counts (`min-replicas-to-write`); 0: none.
    pub(super) confirming: usize,
    /// The setting `min-replicas-max-lag`: the server counts a replica for `min-replicas-to-write` until it has heard nothing from
    /// the replica for this long. So a master that is cut off goes on taking writes for this long.
    pub(super) max_lag: Duration,
    /// How many replicas were connected to the server.
    pub(super) replicas: usize,
}

impl Topology {
    /// Reads `info`, the answer to `INFO`, and `config`, the answer to `CONFIG GET min-replicas-*`; `config` is `None` if the
    /// settings could not be read, usually because the user lacks the right.
    pub(super) fn read(info: &str, config: Option<&HashMap<String, String>>) -> Self {
        let line = |name: &str| {
            let value =
                |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            info.lines().find_map(value)
        };
        let asked = |name: &str| config?.get(name)?.parse::<u64>().ok();
        // `INFO` has this line only if `min-replicas-to-write` is set. If the setting itself cannot be read, it is taken to be 1 if
        // the line is there, and otherwise 0.
        let is_on = line("min_slaves_good_slaves").is_some();
        let confirming = asked("min-replicas-to-write").unwrap_or(u64::from(is_on));
        let max_lag = asked("min-replicas-max-lag").unwrap_or(10);
        Self {
            is_cluster: line("redis_mode").is_some_and(|mode| mode == "cluster"),
            // If `min-replicas-max-lag` is 0, the server does not apply `min-replicas-to-write`.
            confirming: if max_lag == 0 {
                0
            } else {
                usize::try_from(confirming).unwrap_or(usize::MAX)
            },
            max_lag: Duration::from_secs(max_lag),
            replicas: line("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0),
        }
    }

    /// The reason why two clients may hold the same lock while servers are cut off from each other, for users; `None`: two clients
    /// cannot.
    pub(super) fn partition_overlap(
        &self,
        has_sentinels: bool,
        lease: Duration,
    ) -> Option<&'static str> {
        if self.confirming == 0 {
            let is_alone = !has_sentinels && !self.is_cluster && self.replicas == 0;
            return (!is_alone).then_some(
                "a master that is cut off goes on granting until its clients notice: set `min-replicas-to-write`",
            );
        }
        if self.max_lag >= lease {
            return Some(
                "a master that is cut off takes requests for as long as the lease: set `min-replicas-max-lag` below it",
            );
        }
        (self.confirming < self.replicas).then_some(
            "a master that is cut off with enough of its replicas goes on granting until its clients notice: only \
             `min-replicas-to-write` as large as their number prevents that",
        )
    }
}

/// The nodes of a cluster, and which of them to connect to next.
#[derive(Default)]
pub(super) struct Nodes(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// All nodes of the cluster, as a node has listed them last, and the hosts of the URL.
    learnt: Vec<Host>,
    /// The index of the next node to try; it only rises, and is taken modulo the number of nodes.
    next: usize,
    /// The node that has our keys, according to a redirection or the last connection. The next connection is tried there, and only
    /// once, before the other nodes.
    owner: Option<Host>,
    /// When a node was last asked for the nodes of the cluster; `None`: never.
    asked: Option<Instant>,
}

impl Nodes {
    /// The next node to try. If a redirection or the last connection has shown which node has our keys, that node is returned once.
    /// Other calls return the known nodes in turn. `None`: no node is known.
    pub(super) fn take_turn(&self) -> Option<Host> {
        let mut known = self.known();
        if let Some(owner) = known.owner.take() {
            // If this node does not have our keys any more, it answers the greeting with a redirection to the node that has them.
            return Some(owner);
        }
        let next = known.next;
        known.next = next.wrapping_add(1);
        known.learnt.get(next % known.learnt.len().max(1)).cloned()
    }

    /// Notes that `owner` has our keys, as a redirection has said. The next connection is tried there first.
    pub(super) fn point_to(&self, owner: Host) {
        self.known().owner = Some(owner);
    }

    /// Notes the nodes of the cluster as `owner` has listed them. `owner` is the node that has our keys.
    pub(super) fn learn(&self, owner: Host, nodes: Vec<Host>) {
        let mut known = self.known();
        if !nodes.is_empty() {
            known.learnt = nodes;
        }
        known.owner = Some(owner);
        known.asked = Some(Instant::now());
    }

    /// Whether the cluster was last asked for its nodes so long ago that it has to be asked again.
    pub(super) fn are_old(&self) -> bool {
        self.known().asked.is_none_or(|asked| asked.elapsed() > OLD)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The nodes in an answer to `CLUSTER SLOTS`. `asked` is the node that gave the answer: its name stands in for a name that the
/// answer leaves out.
pub(super) fn nodes_in(answer: &Value, asked: &Host) -> Vec<Host> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    let mut found = Vec::new();
    for range in ranges {
        let Value::Array(words) = range else { continue };
        // The first two items of a range are its first and its last slot. The nodes that have these slots follow.
        for node in words.iter().skip(2).filter_map(|node| node_in(node, asked)) {
            if !found.contains(&node) {
                found.push(node);
            }
        }
    }
    found
}

fn node_in(node: &Value, asked: &Host) -> Option<Host> {
    let Value::Array(words) = node else { return None };
    let name = match words.first()? {
        Value::BulkString(name) => str::from_utf8(name).ok()?,
        Value::SimpleString(name) => name,
        Value::Nil => "",
        _ => return None,
    };
    let Value::Int(port) = words.get(1)? else { return None };
    moved(asked, &format!("{name}:{port}"))
}

/// The host and port in `to`, which a redirection or a list of nodes names. If `to` has only a port, the host is `before`, the node
/// that answered. `None`: there is no valid port.
pub(super) fn moved(before: &Host, to: &str) -> Option<Host> {
    let (name, port) = to.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let name = if matches!(name, "" | "?") { before.name.as_str() } else { name };
    Some(Host { name: name.to_owned(), port: Some(port) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port: Some(port) }
    }

    #[test]
    fn a_server_says_how_many_replicas_confirm() {
        let info = "redis_mode:standalone\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:1\r\n";
        let second = Duration::from_secs(1);
        let config = |count: &str, lag: &str| {
            HashMap::from([
                ("min-replicas-to-write".to_owned(), count.to_owned()),
                ("min-replicas-max-lag".to_owned(), lag.to_owned()),
            ])
        };
        let read = |config: Option<HashMap<_, _>>| Topology::read(info, config.as_ref());
        assert_eq!((read(None).confirming, read(None).replicas), (1, 1));
        assert_eq!(read(Some(config("1", "1"))).partition_overlap(true, 10 * second), None);
        assert!(read(Some(config("1", "10"))).partition_overlap(true, 10 * second).is_some());
        assert!(read(Some(config("0", "1"))).partition_overlap(false, 10 * second).is_some());
        assert_eq!(read(Some(config("3", "0"))).confirming, 0);
        let two = Topology { replicas: 2, ..read(Some(config("1", "1"))) };
        assert!(two.partition_overlap(true, 10 * second).is_some());
        let alone = Topology::read("redis_mode:standalone\r\nconnected_slaves:0\r\n", None);
        assert_eq!(alone.partition_overlap(false, second), None);
        assert!(alone.partition_overlap(true, second).is_some());
        assert!(Topology::read("redis_mode:cluster\r\n", None).is_cluster);
    }

    #[test]
    fn a_cluster_tells_of_its_nodes() {
        let node = |name: Value, port| Value::Array(vec![name, Value::Int(port)]);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range =
            |nodes: Vec<Value>| Value::Array([vec![Value::Int(0), Value::Int(9)], nodes].concat());
        let answer = Value::Array(vec![
            range(vec![node(text("10.0.0.1"), 1), node(text("10.0.0.2"), 2)]),
            range(vec![node(text("10.0.0.1"), 1), node(Value::Nil, 3), node(text("x"), 0)]),
        ]);
        let expected = [host("10.0.0.1", 1), host("10.0.0.2", 2), host("asked", 3)];
        assert_eq!(nodes_in(&answer, &host("asked", 7)), expected);
        assert!(nodes_in(&Value::Nil, &host("asked", 7)).is_empty());
    }

    #[test]
    fn the_owner_is_tried_first_and_then_all() {
        let nodes = Nodes::default();
        assert_eq!(nodes.take_turn(), None);
        nodes.learn(host("a", 1), vec![host("a", 1), host("b", 1)]);
        nodes.point_to(host("c", 1));
        assert_eq!(nodes.take_turn(), Some(host("c", 1)));
        let next = [nodes.take_turn(), nodes.take_turn()];
        assert!(
            next.contains(&Some(host("a", 1))) && next.contains(&Some(host("b", 1))),
            "{next:?}"
        );
    }
}
