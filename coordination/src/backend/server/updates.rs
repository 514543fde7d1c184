//! What this client has changed in its own entries by `update`, so that it can be written again.
//!
//! A replica that takes over may have an entry without its newest update. Heartbeats of the entry's owner find the entry, so the
//! owner is told nothing. But there the entry has its old mode and text, and for instance blocks readers, though its owner is a
//! reader by now. So whenever the server may have forgotten updates, the client makes the last update of each of its entries once
//! more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{EntryId, SessionId};
use crate::error::{Effect, Result};

/// The last updates of our own entries. `U` is what is needed to make one, and `At` tells where it was made: as long as that is the
/// same, the server has not forgotten it.
pub(crate) struct Updates<U, At> {
    made: Mutex<HashMap<EntryId, Made<U, At>>>,
    /// Whoever makes a new update has this shared, and whoever makes one again has it exclusively. Otherwise the older update could be
    /// carried out after a newer one of the same entry.
    order: tokio::sync::RwLock<()>,
    /// Locked while updates are made again.
    repeating: tokio::sync::Mutex<()>,
}

/// An update that the server has carried out.
struct Made<U, At> {
    session: SessionId,
    update: Arc<U>,
    /// Read before the update was carried out, so that it may be of an earlier time, and not of a later one.
    at: At,
}

impl<U, At> Default for Updates<U, At> {
    fn default() -> Self {
        let (made, order, repeating) = (Mutex::default(), Default::default(), Default::default());
        Self { made, order, repeating }
    }
}

impl<U, At: PartialEq> Updates<U, At> {
    /// Makes an update of the entry, of which `making` takes a [`note`](Self::note) once the server has carried it out. `is_own`:
    /// whether this process still has the entry.
    pub(crate) async fn make<T>(
        &self,
        id: &EntryId,
        is_own: impl Fn() -> bool,
        making: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let _in_order = self.order.read().await;
        // From now on the one before may be older than what the server has.
        let before = self.made().remove(id);
        let outcome = making.await;
        let has_no_effect = outcome.as_ref().is_err_and(|error| error.effect() == Effect::None);
        if let Some(before) = before.filter(|_| has_no_effect && is_own()) {
            self.made().insert(id.clone(), before);
        }
        outcome
    }

    /// Notes that this is the last update of the entry.
    pub(crate) fn note(&self, id: &EntryId, session: SessionId, update: U, at: At) {
        self.made().insert(id.clone(), Made { session, update: Arc::new(update), at });
    }

    /// The entries of this session whose last update the server may have forgotten by `now`.
    pub(crate) fn due(&self, session: SessionId, now: &At) -> Vec<EntryId> {
        let made = self.made();
        let is_due = |made: &Made<U, At>| made.session == session && made.at != *now;
        made.iter().filter(|(_, made)| is_due(made)).map(|(id, _)| id.clone()).collect()
    }

    /// Makes the last update of each of these entries again. What fails is still [`due`](Self::due). Does nothing while another call
    /// is under way.
    pub(crate) async fn make_again<F: Future<Output = Result<()>>>(
        &self,
        ids: &[EntryId],
        now: impl Fn() -> At,
        make: impl Fn(EntryId, Arc<U>) -> F,
    ) {
        let Ok(_alone) = self.repeating.try_lock() else { return };
        for id in ids {
            let _in_order = self.order.write().await;
            let Some(update) = self.last(id) else { continue };
            let at = now();
            if make(id.clone(), update).await.is_ok() {
                self.made_again(id, at);
            }
        }
    }

    /// The last update of the entry; `None`: it was not updated, or is gone.
    fn last(&self, id: &EntryId) -> Option<Arc<U>> {
        self.made().get(id).map(|made| Arc::clone(&made.update))
    }

    fn made_again(&self, id: &EntryId, at: At) {
        self.made().entry(id.clone()).and_modify(|made| made.at = at);
    }

    /// Forgets an entry that is known to be gone.
    pub(crate) fn forget(&self, id: &EntryId) {
        self.made().remove(id);
    }

    /// Forgets the entries of a session that is over.
    pub(crate) fn end(&self, session: SessionId) {
        self.made().retain(|_, made| made.session != session);
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(crate) fn count(&self) -> usize {
        self.made().len()
    }

    fn made(&self) -> MutexGuard<'_, HashMap<EntryId, Made<U, At>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    fn failed(effect: Effect) -> Error {
        Error::new(ErrorKind::Unavailable, "update", "no answer").with_effect(effect)
    }

    #[test]
    fn an_update_is_due_once_at_each_server() {
        let (updates, session) = (Updates::default(), SessionId::random());
        let id = EntryId::random(session);
        updates.note(&id, session, 1, "a");
        assert!(updates.due(session, &"a").is_empty(), "it was made at this one");
        assert_eq!(updates.due(session, &"b"), std::slice::from_ref(&id));
        assert!(updates.due(SessionId::random(), &"b").is_empty());
        updates.note(&id, session, 2, "a");
        assert_eq!(updates.last(&id).as_deref(), Some(&2));
        updates.made_again(&id, "b");
        assert!(updates.due(session, &"b").is_empty());
        assert_eq!(updates.due(session, &"a").len(), 1);
        updates.forget(&id);
        updates.made_again(&id, "a");
        assert!(updates.last(&id).is_none(), "what is gone is not brought back");
        // Of one of which nobody knows where it was made, nothing is noted that any server has.
        updates.note(&id, session, 3, "");
        assert_eq!(updates.due(session, &"a").len(), 1);
        updates.end(session);
        assert!(updates.last(&id).is_none());
    }

    #[tokio::test]
    async fn the_newest_update_is_made_again_unless_a_newer_one_may_be_there() {
        let (updates, session) = (Updates::default(), SessionId::random());
        let id = EntryId::random(session);
        let noted = async {
            updates.note(&id, session, 1, "a");
            Ok(())
        };
        updates.make(&id, || true, noted).await.expect("it is made");
        let refused = async { Err::<(), _>(failed(Effect::None)) };
        updates.make(&id, || true, refused).await.expect_err("refused");
        assert_eq!(updates.last(&id).as_deref(), Some(&1), "the server still has it");
        let again = Mutex::new(Vec::new());
        let make = |_, update: Arc<i32>| {
            again.lock().expect("no panic").push(*update);
            std::future::ready(Ok(()))
        };
        let fail = |_, _| std::future::ready(Err(failed(Effect::Unknown)));
        updates.make_again(&updates.due(session, &"b"), || "b", fail).await;
        updates.make_again(&updates.due(session, &"b"), || "b", make).await;
        updates.make_again(&updates.due(session, &"b"), || "b", make).await;
        assert_eq!(*again.lock().expect("no panic"), [1]);
        let unknown = async { Err::<(), _>(failed(Effect::Unknown)) };
        updates.make(&id, || true, unknown).await.expect_err("no answer");
        assert!(updates.last(&id).is_none(), "the server may have a newer one");
        updates.note(&id, session, 1, "a");
        let refused = async { Err::<(), _>(failed(Effect::None)) };
        updates.make(&id, || false, refused).await.expect_err("refused");
        assert_eq!(updates.made().len(), 0, "the entry was given up meanwhile");
    }
}
