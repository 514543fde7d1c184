//! Entries whose key is deleted, but may be put again by a call that was given up. The store has no room for the write that would
//! prevent such a put.
//!
//! Such a put is prevented by ending the write fence, which is done by a put of the member's key (see
//! [`write_fence`](super::write_fence)), and a full store refuses puts. It accepts deletes, so the entry's key is deleted, which is
//! all that other waiters need. The entry is remembered, and its key is not used again until the fence is ended. If a late call
//! puts the key before that, the store refuses it for want of room, or the key is deleted again once there is room. One task per
//! session tries to end the fence, for all entries of the session. As long as it runs, callers that leave do not try themselves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::TxnKv;
use super::txn::{Change, Transact};
use crate::backend::{EntryRef, SessionId};
use crate::error::Result;
use crate::panics::caught;

/// The pause between two tries to end a write fence.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a try may take.
const LONGEST: Duration = Duration::from_secs(2);
/// How many entries are deleted in one transaction: Consul takes 64 operations, etcd 128.
const AT_ONCE: usize = 48;

impl<T: Transact> TxnKv<T> {
    /// Notes that the store has no room for this session's puts, and starts the session's task if it has none.
    pub(super) fn await_room(self: &Arc<Self>, session: SessionId) {
        if self.later.begin(session) {
            self.start(session);
        }
    }

    /// Hands the entry over to the session's task, which ends the write fence and deletes the entry's key again when there is
    /// room. The caller's own delete of the key must have been answered: a delete that is still under way could hit the next
    /// entry with this key.
    pub(super) fn leave_later(self: &Arc<Self>, session: SessionId, entry: &EntryRef) {
        if self.later.add(session, entry) {
            self.start(session);
        }
    }

    fn start(self: &Arc<Self>, session: SessionId) {
        tokio::spawn(Self::leave_when_there_is_room(Arc::downgrade(self), session));
    }

    /// The session's task. It ends when the last of the session's entries is removed, when the session is over, or when the
    /// coordinator is dropped.
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

    /// Ends the write fence, and in the same transaction deletes keys that may have been put under it, [`AT_ONCE`] at a time.
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
