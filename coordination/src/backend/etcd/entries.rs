//! Which queues have entries: by the keys of a kind, read without what they say.

use std::collections::BTreeSet;

use etcd_client::{GetOptions, Txn};

use super::keys::{Keys, queue_of_entry};
use super::{Etcd, found};
use crate::backend::stored::queue_name;
use crate::error::Result;
use crate::key;

/// How many queues are asked for their names in one transaction: etcd takes 128.
const BATCH: usize = 32;
/// How many entries of a queue are read for its name; 0: all, where the first is another library's.
const LIMITS: [i64; 2] = [1, 0];

impl Etcd {
    /// The names of the queues of this kind that have an entry, in order.
    pub(super) async fn names_of_queues(&self, kind: &str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get("list", &prefix, all).await?;
        let queues = answer.kvs().iter().filter_map(|kv| queue_of_entry(kv.key(), &prefix));
        let queues: BTreeSet<_> = queues.collect();
        let (mut hashed, plain): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|queue| key::is_hashed(queue));
        let mut names: Vec<_> =
            plain.into_iter().filter_map(|queue| queue_name(queue, b"")).collect();
        for limit in LIMITS {
            let mut unknown = Vec::new();
            for batch in hashed.chunks(BATCH) {
                let entries = |queue: &&str| Keys::new(format!("{prefix}{queue}/")).entries();
                let options = GetOptions::new().with_limit(limit);
                let read = |queue| entries(queue).get(options.clone());
                let reads: Vec<_> = batch.iter().map(read).collect();
                let answer = self.transact("list", Txn::new().and_then(reads)).await?;
                for (nth, queue) in batch.iter().enumerate() {
                    let entries = found(&answer, nth);
                    let name = entries.iter().find_map(|kv| queue_name(queue, kv.value()));
                    // One that became empty meanwhile has none.
                    unknown.extend((name.is_none() && !entries.is_empty()).then_some(*queue));
                    names.extend(name);
                }
            }
            hashed = unknown;
        }
        names.sort_unstable();
        Ok(names)
    }
}
