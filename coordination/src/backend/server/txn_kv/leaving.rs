//! Entries that were deleted and that a call may put all the same, while the store has no room.
//!
//! What makes sure that no such call has an effect any more is a put of the member's key (see [`write_fence`](super::write_fence)),
//! and for that there is no room. A delete needs none. So the entry's key is deleted, which is all that others wait for, and the
//! entry is kept in mind: until there is room its key is not used again, and calls that put something are refused whenever they
//! come. One task of each session tries to end the write fence, for all its entries; who leaves meanwhile does not try.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::TxnKv;
use super::txn::{Change, Transact};
use crate::backend::{EntryRef, SessionId};
use crate::error::Result;
use crate::panics::caught;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a try may take.
const LONGEST: Duration = Duration::from_secs(2);
/// How many entries are deleted in one transaction: Consul takes 64 operations, etcd 128.
const AT_ONCE: usize = 48;

impl<T: Transact> TxnKv<T> {
    /// There is no room: from now on one task tries for all entries of the session.
    pub(super) fn await_room(self: &Arc<Self>, session: SessionId) {
        if self.later.begin(session) {
            self.start(session);
        }
    }

    /// Has the write fence ended under which this entry may still be put, and its key deleted, as soon as there is room. A delete
    /// of the key was answered: none may be under way when the key is used again.
    pub(super) fn leave_later(self: &Arc<Self>, session: SessionId, entry: &EntryRef) {
        if self.later.add(session, entry) {
            self.start(session);
        }
    }

    fn start(self: &Arc<Self>, session: SessionId) {
        tokio::spawn(Self::leave_when_there_is_room(Arc::downgrade(self), session));
    }

    /// Ends with the last of the session's entries, with the session, or with the coordinator.
    async fn leave_when_there_is_room(txn_kv: Weak<Self>, session: SessionId) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some(txn_kv) = txn_kv.upgrade() else { return };
            let leaving = caught("leave", txn_kv.leave_all(session));
            match tokio::time::timeout(LONGEST, leaving).await.map(Result::flatten) {
                Ok(Ok(())) => return,
                Ok(Err(error)) if error.loss_reason().is_some() => {
                    return txn_kv.later.forget(session);
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Ends the write fence, and deletes the keys that may have been put under it, so many at a time.
    async fn leave_all(&self, session: SessionId) -> Result<()> {
        loop {
            let some = self.later.some(session, AT_ONCE);
            if some.is_empty() {
                return Ok(());
            }
            let write_fence = self.write_fences.of(session)?;
            let deletes = some.iter().map(|entry| Change::Delete(self.key(entry))).collect();
            if self.end("leave", &write_fence, deletes).await? {
                for entry in &some {
                    self.key_pool.free(entry);
                    self.later.done(session, entry);
                }
            }
        }
    }
}
