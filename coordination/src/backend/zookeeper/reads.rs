//! What this process has last read of queues. Their entries are kept, so that the next read of a queue needs to read only the nodes
//! that are new in it. The state of their values is kept too, so that a write can be made without another read.
//!
//! An entry's data change only by an update, and each update also writes the node of the queue: that node's version rises, and its
//! data then name the node of the updated entry. So entries that were read at one version of the queue's node are unchanged as long
//! as that node has the same version.

use std::collections::{HashMap, HashSet};

use zookeeper_client::Stat;

use super::client::Found;
use super::entry::number;
use crate::backend::Entry;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::error::Result;
use crate::key::QueueKey;

/// The entries of queues that were read lately. If a queue was dropped from this cache, the next read of that queue costs one more
/// request.
#[derive(Default)]
pub(super) struct Reads(BoundedCache<QueueKey, Known>);

/// The state in which a queue's node was read. If two reads have found the same age, no entry of the queue was updated between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// The session that has read the node. If the servers have lost all their data, another session may see the same numbers again
    /// with other contents. The owner is a part of the age, so that the ages of two sessions are never equal.
    owner: i64,
    /// The number of the transaction that made the node.
    made: i64,
    updates: i32,
}

/// An entry, and the number of the transaction that has last written its node.
pub(super) type Written = (Entry, i64);

struct Known {
    age: Age,
    entries: HashMap<String, Written>,
}

impl Age {
    /// The age of a queue whose node has this state. `None`: the queue has no node, and therefore no entries. The age of such a
    /// queue is different from that of every queue with a node.
    pub(super) fn new(owner: i64, node: Option<&Stat>) -> Self {
        let (made, updates) = node.map_or((0, 0), |stat| (stat.czxid, stat.version));
        Self { owner, made, updates }
    }
}

impl Reads {
    /// Returns the entries of the nodes `names`, which must be all nodes of the queue. If some of them are not known, the error has
    /// the names of these unknown nodes, which the caller has to read first. `updated` is the name of the node that was updated
    /// last before `age`. The entries in `fresh` were read at `age`.
    pub(super) fn look(
        &self,
        queue: &QueueKey,
        age: Age,
        updated: &[u8],
        fresh: &HashMap<String, Written>,
        names: &[String],
    ) -> Result<Vec<Written>, Vec<String>> {
        self.0.update(queue.clone(), |known| {
            let known = known.get_or_insert_with(|| Known::new(age));
            if !known.grow(age, updated) {
                // The cache already has a read that is newer than this one. So the cache is left unchanged, and the result is made
                // of `fresh` alone.
                return pick(&mut fresh.clone(), names);
            }
            let fresh = fresh.iter().map(|(name, entry)| (name.clone(), entry.clone()));
            known.entries.extend(fresh);
            pick(&mut known.entries, names)
        })
    }

    /// Keeps some entries of a queue, which were read at `age`, for the next [`look`](Self::look). The arguments mean the same as
    /// those of `look`.
    pub(super) fn learn(
        &self,
        queue: &QueueKey,
        age: Age,
        updated: &[u8],
        fresh: HashMap<String, Written>,
    ) {
        self.0.update(queue.clone(), |known| {
            let known = known.get_or_insert_with(|| Known::new(age));
            if known.grow(age, updated) {
                known.entries.extend(fresh);
            }
        });
    }
}

/// Returns the entries of these nodes; or, as the error, the names of those nodes that are not in `known`. If it returns the
/// entries, it also removes all other nodes from `known`.
fn pick(
    known: &mut HashMap<String, Written>,
    names: &[String],
) -> Result<Vec<Written>, Vec<String>> {
    let (mut entries, mut unknown) = (Vec::with_capacity(names.len()), Vec::new());
    for name in names {
        match known.get(name) {
            Some(entry) => entries.push(entry.clone()),
            None => unknown.push(name.clone()),
        }
    }
    if !unknown.is_empty() {
        return Err(unknown);
    }
    if known.len() > entries.len() {
        let names: HashSet<_> = names.iter().collect();
        known.retain(|name, _| names.contains(name));
    }
    Ok(entries)
}

impl Known {
    fn new(age: Age) -> Self {
        Self { age, entries: HashMap::new() }
    }

    /// If `age` is older than the cache's age, does nothing and returns false. Otherwise sets the cache's age to `age`, forgets the
    /// entries that may have been updated since the cache's earlier age, and returns true.
    fn grow(&mut self, age: Age, updated: &[u8]) -> bool {
        if self.age.owner != age.owner || self.age.made < age.made {
            self.entries.clear();
        } else if self.age.made > age.made {
            return false;
        } else {
            match age.updates.wrapping_sub(self.age.updates) {
                ..0 => return false,
                0 => {}
                1 => {
                    let updated = String::from_utf8_lossy(updated);
                    self.entries.remove(&*updated);
                }
                2.. => self.entries.clear(),
            }
        }
        self.age = age;
        true
    }
}

/// The state of a queue's value, as it was last read. A write can be made on condition of this state, without reading the value
/// again. If the state has changed since, ZooKeeper refuses the write.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// How often the node above the values of this kind was changed. Every removal of a value changes it. Zero if there is no such
    /// node.
    pub(super) removals: i32,
    /// The value's version, and how often its node was changed since the node was made; `None`: there is no value.
    pub(super) value: Option<(u64, i32)>,
    /// Whether the queue has a node. A write that needs an empty queue makes the node if there is none.
    pub(super) is_there: bool,
}

impl Seen {
    pub(super) fn new(above: Option<&Found>, value: Option<&Found>, is_there: bool) -> Self {
        let removals = above.map_or(0, |found| found.stat.version);
        let value = value.map(|found| (number(found.stat.mzxid), found.stat.version));
        Self { removals, value, is_there }
    }

    pub(super) fn version(&self) -> Option<u64> {
        self.value.map(|(version, _)| version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{EntryId, Mode};

    fn entry(data: &str) -> Written {
        let (id, member) = (EntryId::from_store("a"), "m".into());
        let (since, label, mode) = (None, None, Mode::Shared);
        (Entry { id, seq: 1, member, since, label, mode, data: data.into() }, 1)
    }

    fn fresh(names: &[&str]) -> HashMap<String, Written> {
        names.iter().map(|name| ((*name).to_owned(), entry(name))).collect()
    }

    #[test]
    fn what_was_not_updated_is_known() {
        let queue = QueueKey::new("group", "a", 10).expect("a valid name");
        let entries = Reads::default();
        let names = ["a", "b"].map(str::to_owned);
        let at = |made, updates| Age { owner: 7, made, updates };
        // Returns how many entries it has got, or the names of the nodes that are not known.
        let look = |age, updated: &str, read: &[&str]| {
            let looked = entries.look(&queue, age, updated.as_bytes(), &fresh(read), &names);
            looked.map(|entries| entries.len()).map_err(|names| names.join(" "))
        };
        let unknown = |names: &str| Err(names.to_owned());

        assert_eq!(look(at(1, 0), "", &[]), unknown("a b"));
        assert_eq!(look(at(1, 0), "", &["a"]), unknown("b"));
        assert_eq!(look(at(1, 0), "", &["b"]), Ok(2));
        assert_eq!(look(at(1, 1), "a", &[]), unknown("a"), "one was updated");
        assert_eq!(look(at(1, 2), "a", &["a"]), Ok(2), "and again, while it was read");
        assert_eq!(look(at(1, 1), "a", &[]), unknown("a b"), "read before");
        assert_eq!(look(at(1, 1), "a", &["a", "b"]), Ok(2), "read before, and in full");
        assert_eq!(look(at(1, 4), "a", &["a"]), unknown("b"), "two were");
        assert_eq!(look(at(1, 7), "a", &["a", "b"]), Ok(2), "all was read");
        assert_eq!(look(at(2, 3), "", &[]), unknown("a b"), "another node");
        entries.learn(&queue, at(2, 3), b"", fresh(&["a"]));
        entries.learn(&queue, at(2, 2), b"a", fresh(&["b"]));
        assert_eq!(look(at(2, 3), "", &[]), unknown("b"), "one was learnt, and one before");
        entries.learn(&queue, at(2, 4), b"b", fresh(&["b"]));
        assert_eq!(look(at(2, 4), "b", &[]), Ok(2), "both were learnt");
        assert_eq!(look(at(1, 8), "", &[]), unknown("a b"), "read of the node before");
        let other = Age { owner: 8, ..at(1, 0) };
        assert_eq!(look(other, "", &[]), unknown("a b"), "another session");
    }

    #[test]
    fn what_has_left_is_forgotten() {
        let queue = QueueKey::new("group", "a", 10).expect("a valid name");
        let entries = Reads::default();
        let age = Age { owner: 7, made: 1, updates: i32::MAX };
        let all = ["0", "1", "2", "3", "4"];
        let names = all.map(str::to_owned);
        let look = |age, updated: &str, read: &[&str], names: &[String]| {
            let looked = entries.look(&queue, age, updated.as_bytes(), &fresh(read), names);
            looked.map(|entries| entries.len()).map_err(|names| names.len())
        };
        assert_eq!(look(age, "", &[], &names), Err(5));
        assert_eq!(look(age, "", &all, &names[..1]), Ok(1));
        assert_eq!(look(age, "", &[], &names), Err(4));
        let next = Age { updates: i32::MIN, ..age };
        assert_eq!(look(next, "4", &[], &names[..1]), Ok(1), "it wraps");
    }
}
