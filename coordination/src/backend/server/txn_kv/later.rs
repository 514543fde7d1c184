//! Which entries were deleted that a call may put all the same, while the store has no room: see [`leaving`](super::leaving).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::backend::{EntryId, EntryRef, SessionId};

/// The entries of each session for which there is a task.
#[derive(Default)]
pub(super) struct Later(Mutex<HashMap<SessionId, HashMap<EntryId, EntryRef>>>);

impl Later {
    /// Whether there was no room for this session when it was last tried.
    pub(super) fn lacks_room(&self, session: SessionId) -> bool {
        self.sessions().contains_key(&session)
    }

    /// There is no room for this session. True: that is new, and its task is the caller's to start.
    pub(super) fn begin(&self, session: SessionId) -> bool {
        self.note(session, None)
    }

    /// [`begin`](Self::begin), with an entry that is kept in mind. Both at once: a task that found no entry in between would end,
    /// and the entry would have none.
    pub(super) fn add(&self, session: SessionId, entry: &EntryRef) -> bool {
        self.note(session, Some(entry))
    }

    fn note(&self, session: SessionId, entry: Option<&EntryRef>) -> bool {
        let mut sessions = self.sessions();
        let is_new = !sessions.contains_key(&session);
        let entries = sessions.entry(session).or_default();
        entries.extend(entry.map(|entry| (entry.id.clone(), entry.clone())));
        is_new
    }

    /// Some of the session's entries; with none of them its task ends.
    pub(super) fn some(&self, session: SessionId, at_most: usize) -> Vec<EntryRef> {
        let mut sessions = self.sessions();
        let entries = sessions.get(&session).into_iter().flat_map(HashMap::values);
        let some: Vec<_> = entries.take(at_most).cloned().collect();
        if some.is_empty() {
            sessions.remove(&session);
        }
        some
    }

    pub(super) fn done(&self, session: SessionId, entry: &EntryRef) {
        if let Some(entries) = self.sessions().get_mut(&session) {
            entries.remove(&entry.id);
        }
    }

    /// The session is over, and its entries with it.
    pub(super) fn forget(&self, session: SessionId) {
        self.sessions().remove(&session);
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, HashMap<EntryId, EntryRef>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::QueueKey;

    #[test]
    fn an_entry_that_comes_when_the_task_ends_has_a_task_of_its_own() {
        let (later, session) = (Later::default(), SessionId::random());
        let queue = QueueKey::new("lock", "it", 10).expect("a valid name");
        let entry = EntryRef { queue, id: EntryId::random(session) };
        // Somebody finds that there is no room, and before it has deleted its entry the task finds that there is some.
        assert!(later.begin(session));
        assert!(!later.begin(session), "it has a task");
        assert_eq!(later.some(session, 1), []);
        assert!(later.add(session, &entry), "nobody has a task for it");
        assert!(!later.add(session, &entry));
        assert_eq!(later.some(session, 1), std::slice::from_ref(&entry));
        later.done(session, &entry);
        assert_eq!(later.some(session, 1), []);
        assert!(!later.lacks_room(session));
    }
}
