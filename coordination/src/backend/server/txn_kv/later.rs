//! The entries that [`leaving`](super::leaving) remembers while the store has no space (its quota is used up, or its disk is full).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::backend::{EntryId, EntryRef, SessionId};

/// For each session whose task is running (see [`leaving`](super::leaving)): the entries that the task still has to remove.
#[derive(Default)]
pub(super) struct Later(Mutex<HashMap<SessionId, HashMap<EntryId, EntryRef>>>);

impl Later {
    /// Whether the store had no space at the last try of this session, so that the session's task is running.
    pub(super) fn lacks_room(&self, session: SessionId) -> bool {
        self.sessions().contains_key(&session)
    }

    /// Notes that the store has no space for a put of this session. True: the session's task is not running, and the caller must
    /// start it.
    pub(super) fn begin(&self, session: SessionId) -> bool {
        self.note(session, None)
    }

    /// Like [`begin`](Self::begin), and adds an entry while the mutex is still held. If the mutex were released in between, the
    /// task could find no entry and end, and then no task would take care of the added entry.
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

    /// For the session's task: up to `at_most` of the entries that it still has to remove. If there are none, the session counts as
    /// having no task from then on, so the task must end.
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

    /// Forgets a session that is over, and its entries.
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
        // A caller finds that the store has no space, and starts the task. Before the caller hands its entry over, the task finds
        // no entry, and ends.
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
