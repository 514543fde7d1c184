//! What was read last of queues: their entries, so that the next read of a queue reads only the nodes that are new in it; and the
//! state of their values, so that a write can be made without another read.
//!
//! An entry's data changes only by an update, and each update also writes the node of the queue: that node's version rises, and
//! its data names the entry that was updated. So entries that were read at one version of the queue's node are unchanged as long
//! as the version is the same.

use std::collections::{HashMap, HashSet};

use zookeeper_client::Stat;

use super::client::Found;
use super::entry::number;
use crate::backend::Entry;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::error::Result;
use crate::key::QueueKey;

/// The entries of queues that were read. If a queue is forgotten, its next read costs one more request.
#[derive(Default)]
pub(super) struct Reads(BoundedCache<QueueKey, Known>);

/// The state of a queue's node when it was read. If two reads have the same age, no entry was updated between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// The session that has read the node. Another session may be at a store that has lost its data, where equal numbers mean
    /// nothing.
    owner: i64,
    /// The transaction that made the node.
    made: i64,
    updates: i32,
}

/// An entry, and the transaction that wrote its node last.
pub(super) type Written = (Entry, i64);

struct Known {
    age: Age,
    entries: HashMap<String, Written>,
}

impl Age {
    /// The age of a queue whose node has this state. `None`: the queue has no node, and so no entries. Its age is then one that no
    /// queue with a node has.
    pub(super) fn new(owner: i64, node: Option<&Stat>) -> Self {
        let (made, updates) = node.map_or((0, 0), |stat| (stat.czxid, stat.version));
        Self { owner, made, updates }
    }
}

impl Reads {
    /// Returns the entries of the nodes `names`, which are all nodes of the queue; or, as the error, the names of those that have
    /// to be read first. `updated` names the node that was updated last before `age`, and `fresh` was read at `age`.
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
                // Another read has been noted that is newer than this one, so the cache is newer than `fresh`, and is left as it
                // is.
                return pick(&mut fresh.clone(), names);
            }
            let fresh = fresh.iter().map(|(name, entry)| (name.clone(), entry.clone()));
            known.entries.extend(fresh);
            pick(&mut known.entries, names)
        })
    }

    /// Remembers some entries of a queue, which were read at `age`, for the next [`look`](Self::look), where `updated` is
    /// explained.
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

/// The entries of these nodes, or the names of those nodes that are not known. If all of them are known, the entries of all other
/// nodes are forgotten.
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

    /// Sets the cache's age to `age`, and forgets the entries that may have been updated since; false: `age` is older than the
    /// cache.
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

/// The state of a queue's value when it was read last. A write that is made conditional on this state needs no further read; if the
/// state has changed since, ZooKeeper refuses the write.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// How often the node above the values of the kind was changed, which every removal does; zero if there is no such node.
    pub(super) removals: i32,
    /// The value's version, and how often its node was changed since it was made; `None`: there is no value.
    pub(super) value: Option<(u64, i32)>,
    /// Whether the queue has a node.
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
        let entry =
            Entry { id, seq: 1, member, since: None, mode: Mode::Shared, data: data.into() };
        (entry, 1)
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
        // Returns how many entries are known, or the names of the nodes that are not.
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
