//! Our own entries: an entry is remembered from before the first call that enters it until it is known to be gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::backend::{EntryId, Mode, NewEntry, SessionId};
use crate::env::unix_micros;

/// Our entries, each with the data `T` that the store's code remembers of it.
pub(crate) struct OwnEntries<T>(Mutex<HashMap<EntryId, Own<T>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own<T> {
    pub(crate) session: SessionId,
    pub(crate) mode: Mode,
    /// When this process first called `enter` for this entry, in milliseconds of UNIX time.
    pub(crate) since_ms: u64,
    /// What the store's code remembers of this entry.
    pub(crate) known: T,
}

impl<T> Default for OwnEntries<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> OwnEntries<T> {
    /// Called before an entry is entered. Remembers the entry with the data from `new`, unless it is remembered already. Returns
    /// what is remembered. Also returns true if the entry was remembered already: then an earlier call may have tried to enter it.
    pub(crate) fn begin(&self, entry: &NewEntry, new: impl FnOnce() -> T) -> (Own<T>, bool) {
        let mut entries = self.entries();
        if let Some(own) = entries.get(&entry.entry_ref.id) {
            return (own.clone(), true);
        }
        let (session, mode, since_ms) = (entry.session, entry.mode, unix_micros() / 1000);
        let own = Own { session, mode, since_ms, known: new() };
        entries.insert(entry.entry_ref.id.clone(), own.clone());
        (own, false)
    }

    /// What is remembered of an entry; `None`: the entry is not ours, or it is gone.
    pub(crate) fn own(&self, id: &EntryId) -> Option<Own<T>> {
        self.entries().get(id).cloned()
    }

    pub(crate) fn change<R>(
        &self,
        id: &EntryId,
        change: impl FnOnce(&mut Own<T>) -> R,
    ) -> Option<R> {
        self.entries().get_mut(id).map(change)
    }

    /// Forgets an entry that is known to be gone.
    pub(crate) fn remove(&self, id: &EntryId) -> Option<Own<T>> {
        self.entries().remove(id)
    }

    /// The entries of this session.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", test))]
    pub(crate) fn of(&self, session: SessionId) -> Vec<EntryId> {
        let entries = self.entries();
        let own = entries.iter().filter(|(_, own)| own.session == session);
        own.map(|(id, _)| id.clone()).collect()
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(crate) fn count(&self) -> usize {
        self.entries().len()
    }

    /// Forgets the entries of a session that is over. Returns what was remembered of them.
    pub(crate) fn forget(&self, session: SessionId) -> Vec<Own<T>> {
        let of_session =
            self.entries().extract_if(|_, own| own.session == session).collect::<Vec<_>>();
        of_session.into_iter().map(|(_, own)| own).collect()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<EntryId, Own<T>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{EntryRef, Room};
    use crate::key::QueueKey;

    fn entry(session: SessionId) -> NewEntry {
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let entry_ref = EntryRef { queue, id: EntryId::random(session) };
        let mode = Mode::Exclusive;
        NewEntry {
            entry_ref,
            session,
            member: "m".into(),
            label: None,
            mode,
            data: "".into(),
            room: Room::default(),
        }
    }

    #[test]
    fn what_is_known_stays_until_the_entry_is_gone() {
        let (own_entries, session) = (OwnEntries::default(), SessionId::random());
        let entry = entry(session);
        let id = &entry.entry_ref.id;
        assert!(own_entries.own(id).is_none() && own_entries.change(id, |_| ()).is_none());
        let (first, before) = own_entries.begin(&entry, || 1);
        assert!(!before && first.known == 1);
        own_entries.change(id, |own| own.known = 2);
        let (again, before) = own_entries.begin(&entry, || 3);
        assert!(before && again.known == 2 && again.since_ms == first.since_ms);
        assert_eq!(own_entries.of(session), std::slice::from_ref(id));
        assert_eq!(own_entries.remove(id).map(|own| own.known), Some(2));
        assert!(own_entries.own(id).is_none());
    }

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let (own_entries, session, other) =
            (OwnEntries::default(), SessionId::random(), SessionId::random());
        own_entries.begin(&entry(session), || 1);
        own_entries.begin(&entry(other), || 2);
        assert_eq!(own_entries.forget(session).len(), 1);
        assert!(own_entries.of(session).is_empty() && own_entries.of(other).len() == 1);
    }
}
