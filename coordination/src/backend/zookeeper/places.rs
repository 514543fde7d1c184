//! Which node each of our entries has, as far as is known.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::backend::{EntryId, Mode, NewEntry, SessionId};
use crate::world::unix_micros;

/// Our entries, from before they are entered until they are known to be gone.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<EntryId, Place>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) session: SessionId,
    /// The mode it was entered with, which its node's name tells.
    pub(super) mode: Mode,
    pub(super) since_ms: u64,
    /// Its node; `None`: no answer has told it yet.
    pub(super) node: Option<Made>,
}

/// A node that was made for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// Its path.
    pub(super) path: String,
    /// Its number among its siblings.
    pub(super) number: i32,
    /// The transaction that made it, which is the entry's number.
    pub(super) seq: u64,
}

impl Places {
    /// An entry is to be entered. Answers what is known of it if that was tried before.
    pub(super) fn begin(&self, entry: &NewEntry) -> (u64, Option<Place>) {
        let mut places = self.places();
        if let Some(place) = places.get(&entry.place.id) {
            return (place.since_ms, Some(place.clone()));
        }
        let since_ms = unix_micros() / 1000;
        let place = Place { session: entry.session, mode: entry.mode, since_ms, node: None };
        places.insert(entry.place.id.clone(), place);
        (since_ms, None)
    }

    pub(super) fn made(&self, id: &EntryId, node: Made) {
        if let Some(place) = self.places().get_mut(id) {
            place.node = Some(node);
        }
    }

    /// The node is gone, and the entry may be entered again.
    pub(super) fn unmade(&self, id: &EntryId) {
        if let Some(place) = self.places().get_mut(id) {
            place.node = None;
        }
    }

    /// What is known of an entry; `None`: it was not put here, or is known to be gone.
    pub(super) fn find(&self, id: &EntryId) -> Option<Place> {
        self.places().get(id).cloned()
    }

    /// The entry is known to be gone.
    pub(super) fn remove(&self, id: &EntryId) {
        self.places().remove(id);
    }

    /// The session is over, and its nodes with it.
    pub(super) fn forget(&self, session: SessionId) {
        self.places().retain(|_, place| place.session != session);
    }

    fn places(&self) -> MutexGuard<'_, HashMap<EntryId, Place>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::EntryRef;
    use crate::key::QueueKey;

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let (places, session) = (Places::default(), SessionId::random());
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let place = EntryRef { queue, id: EntryId::random(session) };
        let id = place.id.clone();
        let mode = Mode::Exclusive;
        let entry = NewEntry { place, session, member: "m".into(), mode, data: "".into() };
        assert_eq!(places.begin(&entry).1, None);
        assert_eq!(places.begin(&entry).1.expect("tried before").node, None);
        let node = Made { path: "/a".to_owned(), number: 1, seq: 7 };
        places.made(&id, node.clone());
        assert_eq!(places.find(&id).and_then(|place| place.node), Some(node.clone()));
        places.remove(&id);
        places.made(&id, node);
        assert_eq!(places.find(&id), None);
        places.begin(&entry);
        places.forget(session);
        assert!(places.places().is_empty());
    }
}
