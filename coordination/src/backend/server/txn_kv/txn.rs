//! What the algorithms of this folder need from a store: transactions, and a few further operations.

use std::sync::Arc;

use super::keys::Keys;
use crate::backend::{Cursor, SessionId};
use crate::error::Result;

/// Translates transactions for the servers of one store.
pub(crate) trait Transact: Send + Sync + 'static {
    /// Whether the keys in [`Txn::looks`] are read at the very moment when the transaction is refused. False: they are read by
    /// another request after that, so that they may have changed since.
    const LOOKS_AT_ONCE: bool;
    /// Whether every key that is named like an entry is an entry, whoever wrote it. False: such a key is an entry only if it
    /// belongs, or has belonged, to a session.
    const ALL_COUNT: bool;
    /// The last part of the key of a queue's value.
    const VALUE: &'static str;
    /// The last part of the key of the mark. A removal of the queue's value puts this key, and it stays until the session that
    /// removed the value ends.
    const REMOVED: &'static str;
    /// Whether the function's argument may be the last part of an entry's key.
    const IS_ENTRY: fn(&str) -> bool;
    /// What this store alone can check beside the version of a key; [`Infallible`](std::convert::Infallible): nothing.
    type Check: Clone + std::fmt::Debug + Send + Sync;

    /// Sends a transaction. The error is [`Lost`](crate::ErrorKind::Lost) if the transaction names a session that is over.
    fn commit(
        &self,
        operation: &'static str,
        txn: Txn<Self::Check>,
    ) -> impl Future<Output = Result<Outcome>> + Send;

    /// Deletes a key if it exists. With `only`, deletes the key only if it was created in this version.
    fn delete(&self, key: &str, only: Option<u64>) -> impl Future<Output = Result<()>> + Send;

    /// Prepares a write of a value that must happen only if the queue has no entries. Finds out whether the queue has entries. If
    /// it has none, returns conditions for the write: if an entry is entered before the write arrives, the conditions do not hold,
    /// and the store refuses the write.
    fn alone(
        &self,
        keys: &Keys,
        write_fence: &WriteFence,
    ) -> impl Future<Output = Result<Queue<Self::Check>>> + Send;

    /// The contents of each of these keys, in their order.
    fn fetch(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send;

    /// A page of the keys that begin with this prefix, and where the next page begins.
    fn list(
        &self,
        prefix: &str,
        from: Option<&Cursor>,
    ) -> impl Future<Output = Result<(Vec<String>, Option<Cursor>)>> + Send;

    /// All keys that begin with one of these prefixes, with their contents. A key that is named like an entry, but is not an entry,
    /// is left out (see [`ALL_COUNT`](Self::ALL_COUNT)).
    fn read_each(
        &self,
        prefixes: Vec<String>,
    ) -> impl Future<Output = Result<Vec<(String, Vec<u8>)>>> + Send;

    /// The name that the store has for a session, to be compared with [`Kept::owner`]. `None`: the session is over.
    fn owner(&self, session: SessionId) -> Option<Arc<str>>;
}

/// A transaction: if all conditions hold at the moment when the store carries it out, all changes are made together. Otherwise
/// nothing is changed.
#[derive(Clone, Debug)]
pub(crate) struct Txn<C> {
    pub(crate) conditions: Vec<Condition<C>>,
    pub(crate) changes: Vec<Change>,
    /// The keys to read if a condition does not hold, so that the caller can find out why.
    pub(crate) looks: Vec<String>,
}

impl<C> Default for Txn<C> {
    fn default() -> Self {
        Self { conditions: Vec::new(), changes: Vec::new(), looks: Vec::new() }
    }
}

/// A condition of a [`Txn`]. `C`: the store's own, [`Transact::Check`].
#[derive(Clone, Debug)]
pub(crate) enum Condition<C> {
    /// The key has this version, in which it was last changed; zero: the key does not exist.
    Version(String, u64),
    /// What this store alone can check.
    Own(C),
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Writes a key that stays when sessions end.
    Put(String, Vec<u8>),
    /// Writes a key that is deleted with this session.
    Hold(String, Vec<u8>, SessionId),
    /// Writes an empty key that is deleted with this session, even if the key belongs to another session by now.
    Seize(String, SessionId),
    Delete(String),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The changes were made. This is the version that the changed keys have now.
    Done(u64),
    /// A condition did not hold, and nothing was changed. Has the keys in [`looks`](Txn::looks) as they were read, in the same
    /// order; `None`: the key does not exist.
    Refused(Vec<Option<Kept>>),
}

/// A key, as it was read from the store.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) version: u64,
    /// The version in which the key was created.
    pub(crate) created: u64,
    pub(crate) value: Vec<u8>,
    /// The session that owns the key, so that the key is deleted when the session ends. This is the name that [`Transact::owner`]
    /// returns for the session.
    pub(crate) owner: Arc<str>,
}

/// The write fence of a session: its calls have the condition that the member's key still has this version. See
/// [`write_fence`](super::write_fence).
#[derive(Clone)]
pub(crate) struct WriteFence {
    pub(crate) session: SessionId,
    pub(crate) key: Arc<str>,
    pub(crate) version: u64,
}

impl WriteFence {
    pub(crate) fn holds<C>(&self) -> Condition<C> {
        Condition::Version(self.key.to_string(), self.version)
    }

    /// Ends this write fence: the put gives the member's key a new version, which is the next write fence.
    pub(super) fn renew(&self) -> Change {
        Change::Hold(self.key.to_string(), self.session.to_string().into_bytes(), self.session)
    }

    /// Whether the member's key, as it was read, still has this write fence's version.
    pub(crate) fn is_of(&self, found: Option<&Kept>) -> bool {
        found.is_some_and(|kept| kept.version == self.version)
    }
}

/// Whether a queue has entries. Needed for a write of the queue's value that must happen only if there are none.
#[derive(Debug)]
pub(crate) enum Queue<C> {
    /// The queue has no entry. The field is a part of the transaction of the write: the caller adds its conditions and changes to
    /// those of the write. The conditions hold only as long as no entry is entered. If [`alone`](Transact::alone) had to put keys
    /// for these conditions, the changes delete these keys.
    Empty(Txn<C>),
    /// The queue has an entry. The field is the queue's value as it was read.
    Taken(Option<Kept>),
}
