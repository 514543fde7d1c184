//! What this client has changed in its own entries by `update`, so that it can be written again.
//!
//! A replica that takes over may have an entry without its newest update. Heartbeats of the entry's owner find the entry, so the
//! owner is told nothing. But there the entry has its old mode and text, and for instance blocks readers, though its owner is a
//! reader by now. So on each new connection, the client makes the last update of each of its entries once more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Call;
use crate::backend::{EntryId, SessionId};

/// The last updates of our own entries.
#[derive(Default)]
pub(super) struct Updates {
    made: Mutex<HashMap<EntryId, Made>>,
    /// Whoever makes a new update has this shared, and whoever makes one again has it exclusively. Otherwise the older update could be
    /// carried out after a newer one of the same entry.
    pub(super) order: tokio::sync::RwLock<()>,
}

/// What an update writes into an entry.
pub(super) struct Update {
    pub(super) session: SessionId,
    pub(super) path: String,
    pub(super) seq: u64,
    pub(super) is_shared: bool,
    pub(super) text: Vec<u8>,
}

/// An update that the server has carried out.
struct Made {
    update: Arc<Update>,
    /// The epoch of the connection on which it was carried out, or of an older one.
    epoch: u64,
}

impl Update {
    /// The call that makes this update of the entry `id`.
    pub(super) fn call(&self, id: &EntryId) -> Call {
        Call::new("update", "update")
            .of(self.session)
            .bytes(self.path.as_str())
            .bytes(id.as_str())
            .flag(self.is_shared)
            .bytes(self.text.as_slice())
            .number(self.seq)
    }
}

impl Updates {
    /// Notes that this is the last update of the entry.
    pub(super) fn note(&self, id: &EntryId, update: Update, epoch: u64) {
        self.made().insert(id.clone(), Made { update: Arc::new(update), epoch });
    }

    /// The entries of this session whose last update was made before the connection of this epoch.
    pub(super) fn before(&self, session: SessionId, epoch: u64) -> Vec<EntryId> {
        let made = self.made();
        let is_due = |made: &Made| made.update.session == session && made.epoch < epoch;
        made.iter().filter(|(_, made)| is_due(made)).map(|(id, _)| id.clone()).collect()
    }

    /// The last update of the entry; `None`: it was not updated, or is gone.
    pub(super) fn last(&self, id: &EntryId) -> Option<Arc<Update>> {
        self.made().get(id).map(|made| Arc::clone(&made.update))
    }

    /// Notes that the last update of the entry was made again on the connection of this epoch.
    pub(super) fn made_again(&self, id: &EntryId, epoch: u64) {
        self.made().entry(id.clone()).and_modify(|made| made.epoch = epoch);
    }

    /// Forgets an entry that is known to be gone.
    pub(super) fn forget(&self, id: &EntryId) {
        self.made().remove(id);
    }

    /// Forgets the entries of a session that is over.
    pub(super) fn end(&self, session: SessionId) {
        self.made().retain(|_, made| made.update.session != session);
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(super) fn count(&self) -> usize {
        self.made().len()
    }

    fn made(&self) -> MutexGuard<'_, HashMap<EntryId, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_due_once_on_each_connection() {
        let (updates, session) = (Updates::default(), SessionId::random());
        let id = EntryId::random(session);
        let update = |text: &str| Update {
            session,
            path: "a/lock/x".to_owned(),
            seq: 7,
            is_shared: true,
            text: text.into(),
        };
        updates.note(&id, update("1"), 1);
        assert!(updates.before(session, 1).is_empty(), "it was made on this one");
        assert_eq!(updates.before(session, 2), std::slice::from_ref(&id));
        assert!(updates.before(SessionId::random(), 2).is_empty());
        updates.note(&id, update("2"), 1);
        assert_eq!(updates.last(&id).map(|update| update.text.clone()), Some(b"2".to_vec()));
        updates.made_again(&id, 2);
        assert!(updates.before(session, 2).is_empty());
        assert_eq!(updates.before(session, 3).len(), 1);
        updates.forget(&id);
        updates.made_again(&id, 3);
        assert!(updates.last(&id).is_none(), "what is gone is not brought back");
        updates.note(&id, update("3"), 1);
        updates.end(session);
        assert!(updates.last(&id).is_none());
    }
}
