//! Which queues have entries: by the names of their nodes' children.

use std::collections::BTreeSet;

use super::Zookeeper;
use super::client::Connection;
use super::entries::fresh_children;
use crate::backend::stored::queue_name;
use crate::error::Result;
use crate::key;

/// How many nodes are read at once.
const BATCH: usize = 32;
/// How many entries of a queue are read for its name: all, where the first has left meanwhile or is another library's.
const LIMITS: [usize; 2] = [1, usize::MAX];

impl Zookeeper {
    /// The names of the queues of this kind that have an entry, in order.
    pub(super) async fn names_of_queues(
        &self,
        connection: &Connection,
        kind: &str,
    ) -> Result<Vec<String>> {
        let above = self.tree.queues(kind);
        let queues = fresh_children(connection, "list", &above).await?;
        let (mut hashed, mut plain): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|queue| key::is_hashed(queue));
        // No queue of ours has what stands under any other name.
        plain.retain(|queue| queue_name(queue, b"").is_some());
        let entries = self.entries_below(connection, &above, &plain).await?;
        let used = plain.iter().zip(entries).filter(|(_, entries)| !entries.is_empty());
        let mut names: Vec<_> = used.filter_map(|(queue, _)| queue_name(queue, b"")).collect();
        for limit in LIMITS {
            let entries = self.entries_below(connection, &above, &hashed).await?;
            let mut nodes = Vec::new();
            for (queue, entries) in hashed.iter().zip(&entries) {
                let path = |entry| (queue.clone(), format!("{above}/{queue}/{entry}"));
                nodes.extend(entries.iter().take(limit).map(path));
            }
            let mut unknown: BTreeSet<_> = nodes.iter().map(|(queue, _)| queue.clone()).collect();
            for batch in nodes.chunks(BATCH) {
                let paths: Vec<_> = batch.iter().map(|(_, path)| path.clone()).collect();
                let (_, found) = connection.read("list", None, &paths).await?;
                for ((queue, _), found) in batch.iter().zip(found) {
                    if let Some(name) = found.and_then(|found| queue_name(queue, &found.data)) {
                        unknown.remove(queue);
                        names.push(name);
                    }
                }
            }
            hashed = unknown.into_iter().collect();
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The names of the nodes of these queues' entries. An empty queue has a node until the server removes it.
    async fn entries_below(
        &self,
        connection: &Connection,
        above: &str,
        queues: &[String],
    ) -> Result<Vec<Vec<String>>> {
        let paths: Vec<_> = queues.iter().map(|queue| format!("{above}/{queue}")).collect();
        let mut listed = connection.children_of("list", &paths, BATCH).await?;
        for children in &mut listed {
            children.retain(|child| self.style.read(child).is_some());
        }
        Ok(listed)
    }
}
