//! What the stores etcd and Consul have in common: both keep keys with versions, and can change several keys in one transaction.
//!
//! Each entry of a queue is a key that is deleted when its session ends. The queue's value is a key that stays. A key's version
//! rises with each change of the key. The algorithms here describe their changes as a [`Txn`], a transaction, which each store
//! translates into requests to its servers.

mod entering;
mod entries;
mod key_pool;
pub(crate) mod keys;
mod later;
mod leaving;
mod names;
mod pending_creates;
#[cfg(test)]
mod tests;
mod txn;
mod values;
mod write_fence;

use tokio::sync::Mutex;

pub(crate) use self::entering::{Attempt, Enter, Entered, is_there};
pub(crate) use self::entries::Left;
pub(crate) use self::key_pool::{KeyPool, Naming};
pub(crate) use self::keys::Keys;
use self::later::Later;
use self::pending_creates::PendingCreates;
pub(crate) use self::txn::{Change, Condition, Kept, Outcome, Queue, Transact, Txn, WriteFence};
use self::write_fence::WriteFences;
use crate::backend::{EntryRef, SessionId};
use crate::key::{self, QueueKey};

/// The store, and what this process has to remember of the calls that it has sent.
pub(crate) struct TxnKv<T> {
    pub(crate) store: T,
    pub(crate) key_pool: KeyPool,
    pub(crate) write_fences: WriteFences,
    /// Held by the task that is just ending a write fence, so that only one task at a time ends a fence: see
    /// [`ending_turn`](Self::ending_turn).
    ending: Mutex<()>,
    later: Later,
    pending_creates: PendingCreates,
    namespace: String,
}

impl<T: Transact> TxnKv<T> {
    /// `in_turn`: how many keys a session's entries in a queue use in rotation, at least. See [`KeyPool`].
    pub(crate) fn new(store: T, namespace: &str, naming: Naming, in_turn: usize) -> Self {
        Self {
            store,
            namespace: namespace.to_owned(),
            key_pool: KeyPool::new(naming, in_turn),
            write_fences: WriteFences::default(),
            ending: Mutex::default(),
            later: Later::default(),
            pending_creates: PendingCreates::default(),
        }
    }

    pub(crate) fn keys(&self, queue: &QueueKey) -> Keys {
        Keys::new(format!("{}/{}/{}/", self.namespace, queue.kind(), queue.encoded()))
    }

    /// The key of an entry. For an entry of ours, the key pool knows the last part of the key. For another client's entry, the last
    /// part of the key is the entry's id.
    pub(crate) fn key(&self, entry: &EntryRef) -> String {
        self.keys(&entry.queue).key(&self.key_pool.name(entry))
    }

    pub(crate) fn member_key(&self, member: &str) -> String {
        format!("{}/member/{}", self.namespace, key::encode(member))
    }

    /// Forgets a session that is over, and all that it owned.
    pub(crate) fn forget(&self, session: SessionId) {
        self.key_pool.forget(session);
        self.write_fences.forget(session);
        self.later.forget(session);
    }

    /// How many entries, queues and sessions are remembered.
    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(crate) fn kept(&self) -> usize {
        self.key_pool.kept() + self.write_fences.count()
    }

    /// Whether the key that was read belongs to this session, so that it is deleted when the session ends.
    pub(crate) fn is_of(&self, kept: &Kept, session: SessionId) -> bool {
        self.store.owner(session).is_some_and(|owner| owner == kept.owner)
    }

    /// The write fence that has to be ended so that no call that was given up can put this entry later. `None`: no such call was
    /// given up, the write fence under which it was sent was ended since, or the session is over.
    fn in_doubt(&self, entry: &EntryRef) -> Option<WriteFence> {
        let (session, version) = self.key_pool.in_doubt(entry)?;
        self.write_fences.of(session).ok().filter(|write_fence| write_fence.version <= version)
    }
}
