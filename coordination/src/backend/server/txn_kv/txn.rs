//! The operations that the algorithms of this folder need of a store.

use std::sync::Arc;

use super::keys::Keys;
use crate::backend::{Cursor, SessionId};
use crate::error::Result;

/// Translates transactions for the servers of one store.
pub(crate) trait Transact: Send + Sync + 'static {
    /// Whether [`Txn::looks`] are read at the very moment when the transaction is refused; false: by a request after that.
    const LOOKS_AT_ONCE: bool;
    /// Whether every key with an entry's name is an entry, whoever wrote it; false: only if the key belongs, or has belonged, to
    /// a session.
    const ALL_COUNT: bool;
    /// The name of the key of a queue's value.
    const VALUE: &'static str;
    /// The name of the mark: the key that a removal of the value puts, which stays until the session that removed it ends.
    const REMOVED: &'static str;
    /// Whether this name may be an entry's.
    const IS_ENTRY: fn(&str) -> bool;

    /// Sends a transaction. The error is [`Lost`](crate::ErrorKind::Lost) if a session that it names is over.
    fn commit(
        &self,
        operation: &'static str,
        txn: Txn,
    ) -> impl Future<Output = Result<Outcome>> + Send;

    /// Deletes a key if it is there. With `only`, deletes it only if it was created in this version.
    fn delete(&self, key: &str, only: Option<u64>) -> impl Future<Output = Result<()>> + Send;

    /// For a write of a value that must happen only if the queue has no entries: finds out whether there are any, and returns the
    /// conditions that refuse the write if an entry is entered before it.
    fn alone(
        &self,
        keys: &Keys,
        write_fence: &WriteFence,
    ) -> impl Future<Output = Result<Queue>> + Send;

    /// The contents of each of these keys, in their order.
    fn fetch(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send;

    /// A page of the keys that begin with this prefix, and where the next page begins.
    fn list(
        &self,
        prefix: &str,
        from: Option<&Cursor>,
    ) -> impl Future<Output = Result<(Vec<String>, Option<Cursor>)>> + Send;

    /// All keys that begin with one of these prefixes, with their contents; but of keys with an entry's name only those that are
    /// entries (see [`ALL_COUNT`](Self::ALL_COUNT)).
    fn read_each(
        &self,
        prefixes: Vec<String>,
    ) -> impl Future<Output = Result<Vec<(String, Vec<u8>)>>> + Send;

    /// The store's name of a session, with which [`Kept::owner`] is compared; `None`: the session is over.
    fn owner(&self, session: SessionId) -> Option<Arc<str>>;
}

/// Changes that take effect together if all conditions hold at that moment, or else not at all.
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
    /// No key exists in the range that begins with the first key and ends before the second.
    #[cfg(feature = "etcd")]
    None(String, String),
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Writes a key that stays when sessions end.
    Put(String, Vec<u8>),
    /// Writes a key that is deleted with this session.
    Hold(String, Vec<u8>, SessionId),
    /// Like [`Hold`](Self::Hold), even if the key belongs to another session by now.
    Seize(String, SessionId),
    Delete(String),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The changes were made, in this version.
    Done(u64),
    /// Nothing was changed. The keys of `looks`, in their order; `None`: there is no such key.
    Refused(Vec<Option<Kept>>),
}

/// A key as the store keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) version: u64,
    /// The version in which the key was created.
    pub(crate) created: u64,
    pub(crate) value: Vec<u8>,
    /// The session with which the key is deleted, by its name from [`Transact::owner`].
    pub(crate) owner: Arc<str>,
}

/// A condition on a session's calls, which holds as long as the member's key has this version: see
/// [`write_fence`](super::write_fence).
#[derive(Clone)]
pub(crate) struct WriteFence {
    pub(crate) session: SessionId,
    pub(crate) key: Arc<str>,
    pub(crate) version: u64,
}

impl WriteFence {
    pub(crate) fn holds(&self) -> Condition {
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

/// Whether a queue has entries, for a write of its value that must happen only if there are none.
#[derive(Debug)]
pub(crate) enum Queue {
    /// There is no entry. The transaction has conditions that hold only as long as there is none, and changes that remove what
    /// [`alone`](Transact::alone) itself has put to make sure of that. Both are added to the write.
    Empty(Txn),
    /// There is an entry. Has the queue's value, as it was found.
    Taken(Option<Kept>),
}
