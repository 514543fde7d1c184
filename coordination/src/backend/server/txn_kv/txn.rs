//! What stores that keep keys with versions are asked to do.

use std::sync::Arc;

use super::keys::Keys;
use crate::backend::{Cursor, SessionId};
use crate::error::Result;

/// How a store makes transactions.
pub(crate) trait Transact: Send + Sync + 'static {
    /// Whether a refusal tells what was so when it was refused, and not only what was so a moment later.
    const LOOKS_AT_ONCE: bool;
    /// Whether each key counts whose name may be that of an entry, whoever wrote it.
    const ALL_COUNT: bool;
    /// The names of a queue's value, and of the mark that its removal leaves for a while.
    const VALUE: &'static str;
    const REMOVED: &'static str;
    /// Whether an entry may have this name.
    const IS_ENTRY: fn(&str) -> bool;

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
        keys: &Keys,
        write_fence: &WriteFence,
    ) -> impl Future<Output = Result<Queue>> + Send;

    /// What stands under each of these keys, in order.
    fn fetch(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send;

    /// A page of the keys that begin with this, and where the next one begins.
    fn list(
        &self,
        prefix: &str,
        from: Option<&Cursor>,
    ) -> impl Future<Output = Result<(Vec<String>, Option<Cursor>)>> + Send;

    /// All keys that begin with one of these, and what stands there: of entries only those that count.
    fn read_each(
        &self,
        prefixes: Vec<String>,
    ) -> impl Future<Output = Result<Vec<(String, Vec<u8>)>>> + Send;

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

/// Holds as long as the member's key has this version.
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

    /// Ends it; the next one has the version in which this is done.
    pub(super) fn renew(&self) -> Change {
        Change::Hold(self.key.to_string(), self.session.to_string().into_bytes(), self.session)
    }

    /// Whether the member's key, as it was read, is the one that was put then.
    pub(crate) fn is_of(&self, found: Option<&Kept>) -> bool {
        found.is_some_and(|kept| kept.version == self.version)
    }
}

/// A queue whose value is to be written if there is no entry.
#[derive(Debug)]
pub(crate) enum Queue {
    /// What holds while that is so, and what is to be cleared away afterwards.
    Empty(Txn),
    /// It has an entry; and its value.
    Taken(Option<Kept>),
}
