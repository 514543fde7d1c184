//! Stores that keep keys with versions, and change several of them in one transaction: what they do alike.
//!
//! A queue's entries are keys that go with their session, its value is a key that stays, and a version rises with
//! each change. The algorithms here are written over a small [`Txn`]; each store translates that for its servers.

mod admission;
mod entries;
pub(crate) mod keys;
mod names;
mod slots;
#[cfg(test)]
mod tests;
mod txn;
mod unanswered;
mod values;

use tokio::sync::Mutex;

use self::admission::Admissions;
pub(crate) use self::keys::Keys;
pub(crate) use self::slots::{Naming, Slots};
pub(crate) use self::txn::{Admission, Change, Condition, Kept, Outcome, Queue, Transact, Txn};
use self::unanswered::Unanswered;
use crate::backend::{EntryRef, SessionId};
use crate::key::{self, QueueKey};

/// What all clients of such a store need to know of their own calls.
pub(crate) struct Keyed<T> {
    pub(crate) store: T,
    pub(crate) slots: Slots,
    pub(crate) admissions: Admissions,
    /// Held while an admission is ended.
    ending: Mutex<()>,
    unanswered: Unanswered,
    namespace: String,
}

impl<T: Transact> Keyed<T> {
    /// `in_turn`: see [`Slots::new`].
    pub(crate) fn new(store: T, namespace: &str, naming: Naming, in_turn: usize) -> Self {
        Self {
            store,
            namespace: namespace.to_owned(),
            slots: Slots::new(naming, in_turn),
            admissions: Admissions::default(),
            ending: Mutex::default(),
            unanswered: Unanswered::default(),
        }
    }

    pub(crate) fn keys(&self, queue: &QueueKey) -> Keys {
        Keys::new(format!("{}/{}/{}/", self.namespace, queue.kind(), queue.encoded()))
    }

    /// An entry's key: of ours by its slot, of others as it was listed.
    pub(crate) fn key(&self, entry: &EntryRef) -> String {
        self.keys(&entry.queue).key(&self.slots.name(entry))
    }

    pub(crate) fn member_key(&self, member: &str) -> String {
        format!("{}/member/{}", self.namespace, key::encode(member))
    }

    /// The session is over, and all that it owned.
    pub(crate) fn forget(&self, session: SessionId) {
        self.slots.forget(session);
        self.admissions.forget(session);
    }

    /// Whether a key goes with this session.
    pub(crate) fn is_of(&self, kept: &Kept, session: SessionId) -> bool {
        self.store.owner(session).is_some_and(|owner| owner == kept.owner)
    }

    /// The admission under which a call of this entry was given up that may still put it.
    fn in_doubt(&self, entry: &EntryRef) -> Option<Admission> {
        let (session, version) = self.slots.in_doubt(entry)?;
        self.admissions.of(session).ok().filter(|admission| admission.version <= version)
    }
}
