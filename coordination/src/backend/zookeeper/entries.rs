//! Entries as they were read last, so that a look at a queue reads only those that are new in it.
//!
//! An entry changes by an update only, and each update changes the node of the queue with it: the count of that node's
//! changes rises, and its data names what was updated. What was read at one count is so whenever the count is the same.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use zookeeper_client::Stat;

use crate::backend::Entry;
use crate::key::QueueKey;

/// How many queues are remembered: forgetting one costs a look at it one read more.
const REMEMBERED: usize = 256;

/// The entries of queues that were looked at.
#[derive(Default)]
pub(super) struct Entries(Mutex<HashMap<QueueKey, Known>>);

/// When the node of a queue was as it was read, counted in updates of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// The session that has read it: another one may be at a store that has lost its data.
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
    pub(super) fn new(owner: i64, stat: &Stat) -> Self {
        Self { owner, made: stat.czxid, updates: stat.version }
    }
}

impl Entries {
    /// The entries of all nodes of a queue, or which of those that may be entries have to be read. `updated` is the one
    /// that was last. `None`: it was later that somebody else has looked.
    pub(super) fn look(
        &self,
        queue: &QueueKey,
        age: Age,
        updated: &[u8],
        names: &[String],
        is_entry: impl Fn(&str) -> bool,
    ) -> Option<Result<Vec<Written>, Vec<String>>> {
        let mut queues = self.queues();
        if queues.len() >= REMEMBERED && !queues.contains_key(queue) {
            queues.clear();
        }
        let new = || Known { age, entries: HashMap::new() };
        let known = queues.entry(queue.clone()).or_insert_with(new);
        known.grow(age, updated)?;
        let (mut entries, mut unknown) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match known.entries.get(name) {
                Some(entry) => entries.push(entry.clone()),
                None if is_entry(name) => unknown.push(name.clone()),
                None => {}
            }
        }
        if !unknown.is_empty() {
            return Some(Err(unknown));
        }
        if known.entries.len() > entries.len() {
            let names: HashSet<_> = names.iter().collect();
            known.entries.retain(|name, _| names.contains(name));
        }
        Some(Ok(entries))
    }

    /// A node was read at that age.
    pub(super) fn learn(&self, queue: &QueueKey, age: Age, name: &str, entry: Written) {
        if let Some(known) = self.queues().get_mut(queue).filter(|known| known.age == age) {
            known.entries.insert(name.to_owned(), entry);
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<QueueKey, Known>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Known {
    /// Forgets what may have changed until that age; `None`: it is older.
    fn grow(&mut self, age: Age, updated: &[u8]) -> Option<()> {
        if self.age.owner != age.owner || self.age.made < age.made {
            self.entries.clear();
        } else if self.age.made > age.made {
            return None;
        } else {
            match age.updates.wrapping_sub(self.age.updates) {
                ..0 => return None,
                0 => {}
                1 => {
                    let updated = String::from_utf8_lossy(updated);
                    self.entries.remove(&*updated);
                }
                2.. => self.entries.clear(),
            }
        }
        self.age = age;
        Some(())
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

    #[test]
    fn what_was_not_updated_is_known() {
        let queue = QueueKey::new("group", "a", 10).expect("a valid name");
        let entries = Entries::default();
        let names = ["a", "b", "stranger"].map(str::to_owned);
        let at = |made, updates| Age { owner: 7, made, updates };
        // How many are known, or which are not.
        let look = |age, updated: &str| {
            let looked =
                entries.look(&queue, age, updated.as_bytes(), &names, |name| name != "stranger");
            looked.map(|known| known.map(|entries| entries.len()).map_err(|names| names.join(" ")))
        };
        let learn = |age, name: &str| entries.learn(&queue, age, name, entry(name));
        let unknown = |names: &str| Some(Err(names.to_owned()));

        assert_eq!(look(at(1, 0), ""), unknown("a b"));
        learn(at(1, 0), "a");
        learn(at(1, 1), "b");
        assert_eq!(look(at(1, 0), ""), unknown("b"));
        learn(at(1, 0), "b");
        assert_eq!(look(at(1, 0), ""), Some(Ok(2)));
        assert_eq!(look(at(1, 1), "a"), unknown("a"), "one was updated");
        assert_eq!(look(at(1, 0), ""), None, "read before");
        learn(at(1, 1), "a");
        assert_eq!(look(at(1, 3), "a"), unknown("a b"), "two were");
        assert_eq!(look(at(2, 3), ""), unknown("a b"), "another node");
        assert_eq!(look(at(1, 4), ""), None);
        assert_eq!(look(Age { owner: 8, ..at(1, 0) }, ""), unknown("a b"), "another session");
    }

    #[test]
    fn what_has_left_is_forgotten() {
        let queue = QueueKey::new("group", "a", 10).expect("a valid name");
        let entries = Entries::default();
        let age = Age { owner: 7, made: 1, updates: i32::MAX };
        let names: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        let look = |age, updated: &str, names: &[String]| {
            let looked = entries.look(&queue, age, updated.as_bytes(), names, |_| true);
            looked
                .expect("nobody else looks")
                .map(|entries| entries.len())
                .map_err(|names| names.len())
        };
        assert_eq!(look(age, "", &names), Err(10));
        names.iter().for_each(|name| entries.learn(&queue, age, name, entry(name)));
        assert_eq!(look(age, "", &names[..1]), Ok(1));
        assert_eq!(look(age, "", &names), Err(9));
        let next = Age { updates: i32::MIN, ..age };
        assert_eq!(look(next, "9", &names[..1]), Ok(1), "it wraps");
    }
}
