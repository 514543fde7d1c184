//! Stores that keep keys with versions, and change several of them in one transaction: what they do alike.
//!
//! A queue's entries are keys that go with their session, its value is a key that stays, and a version rises with
//! each change. The algorithms here are written over a small [`Txn`]; each store translates that for its servers.

mod admission;
mod entries;
mod slots;
mod unanswered;
mod values;

use std::sync::Arc;

pub(crate) use self::admission::Admission;
use self::admission::Admissions;
pub(crate) use self::slots::{Naming, Slots};
use self::unanswered::Unanswered;
pub(crate) use self::values::{Alone, Queue, ValueKeys};
use crate::backend::{EntryRef, SessionId};
use crate::error::Result;

/// What all clients of such a store need to know of their own calls.
pub(crate) struct Keyed<T> {
    pub(crate) store: T,
    pub(crate) slots: Slots,
    pub(crate) admissions: Admissions,
    unanswered: Unanswered,
}

/// How a store makes transactions.
pub(crate) trait Transact: Send + Sync + 'static {
    /// Whether a refusal tells what was so when it was refused, and not only what was so a moment later.
    const LOOKS_AT_ONCE: bool;

    /// Makes a transaction. [`Lost`](crate::ErrorKind::Lost): a session that it names is over.
    fn commit(
        &self,
        operation: &'static str,
        txn: Txn,
    ) -> impl Future<Output = Result<Outcome>> + Send;

    /// Deletes a key if it is there; `only`: if it was created in this version.
    fn delete(&self, key: &str, only: Option<u64>) -> impl Future<Output = Result<()>> + Send;

    /// Sees to it that a value can be written on condition that its queue has no entry.
    fn alone(
        &self,
        keys: &ValueKeys,
        admission: &Admission,
    ) -> impl Future<Output = Result<Queue>> + Send;

    /// The name at the store of a session; `None`: it is over.
    fn owner(&self, session: SessionId) -> Option<Arc<str>>;
}

/// What is done as of one moment, or not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Txn {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) changes: Vec<Change>,
    /// The keys to read if a condition does not hold.
    pub(crate) looks: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The key was last changed in this version; zero: there is no such key.
    Version(String, u64),
    /// There is no key from the first on and before the second.
    #[cfg(feature = "etcd")]
    None(String, String),
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Writes a key that goes with nobody.
    Put(String, Vec<u8>),
    /// Writes a key that goes with this session.
    Hold(String, Vec<u8>, SessionId),
    /// [`Hold`](Self::Hold), whoever held it.
    Seize(String, SessionId),
    Delete(String),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// In this version.
    Done(u64),
    /// Nothing was done. What was looked for, in order; `None` stands for a key that is not there.
    Refused(Vec<Option<Kept>>),
}

/// A key as the store keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) version: u64,
    /// The version that created it.
    pub(crate) created: u64,
    pub(crate) value: Vec<u8>,
    /// With whom it goes, as [`Transact::owner`] says.
    pub(crate) owner: Arc<str>,
}

impl<T: Transact> Keyed<T> {
    /// `in_turn`: see [`Slots::new`].
    pub(crate) fn new(store: T, naming: Naming, in_turn: usize) -> Self {
        Self {
            store,
            slots: Slots::new(naming, in_turn),
            admissions: Admissions::default(),
            unanswered: Unanswered::default(),
        }
    }

    /// The session is over, and all that it owned.
    pub(crate) fn forget(&self, session: SessionId) {
        self.slots.forget(session);
        self.admissions.forget(session);
    }

    /// Whether a key goes with this session.
    fn is_of(&self, kept: &Kept, session: SessionId) -> bool {
        self.store.owner(session).is_some_and(|owner| owner == kept.owner)
    }

    /// Whether a call of this entry was given up that may still put it, while its session is open.
    fn in_doubt(&self, entry: &EntryRef) -> Option<SessionId> {
        self.slots.in_doubt(entry).filter(|session| self.admissions.of(*session).is_ok())
    }
}
