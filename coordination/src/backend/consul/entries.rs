//! Which queues have entries: by the names of keys, and by whether a session has them.

use std::collections::BTreeMap;

use super::client::Request;
use super::entry::counts;
use super::keys::queue_of_entry;
use super::kv::{Operation, Pair, names, read_all, read_together};
use super::{BATCH, Consul};
use crate::backend::stored::queue_name;
use crate::error::Result;

impl Consul {
    /// The names of the queues of this kind that have an entry, in order.
    pub(super) async fn names_of_queues(&self, kind: &str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let request = Request::get(format!("kv/{prefix}")).with("keys").with("consistent");
        let listed = names("list", self.connections.call("list", request).await?)?;
        // One of each queue's keys.
        let queues: BTreeMap<_, _> =
            listed.iter().filter_map(|key| Some((queue_of_entry(key, &prefix)?, key))).collect();
        let queues: Vec<_> = queues.into_iter().collect();
        let name_in = |queue: &str, pairs: &[Pair]| {
            let of_queue = |pair: &&Pair| queue_of_entry(&pair.key, &prefix) == Some(queue);
            let mut entries = pairs.iter().filter(of_queue).filter(|pair| counts(pair));
            entries.find_map(|pair| queue_name(queue, &pair.value()))
        };
        let mut names = Vec::new();
        for batch in queues.chunks(BATCH) {
            let reads: Vec<_> =
                batch.iter().map(|(_, key)| Operation::read(key.as_str())).collect();
            let pairs = read_together(&self.connections, "list", &reads).await?;
            for (queue, _) in batch {
                let mut name = name_in(queue, &pairs);
                if name.is_none() {
                    // It has left meanwhile, or never came with a session: others may be there.
                    let keys = format!("{prefix}{queue}/");
                    let (pairs, _) = read_all(&self.connections, "list", &keys).await?;
                    name = name_in(queue, &pairs);
                }
                names.extend(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
