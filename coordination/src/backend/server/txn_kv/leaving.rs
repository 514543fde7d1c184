//! How an entry is left while the store has no space (its quota is used up, or its disk is full), if a call that was given up may
//! still put the entry's key.
//!
//! To prevent such a late put, the write fence has to be ended. This needs a put of the member's key (see
//! [`write_fence`](super::write_fence)), and a full store refuses puts. It accepts deletes. So the entry's key is deleted at once,
//! which is all that other waiters need. But the entry is remembered, and its key is not used again, until the fence is ended.
//!
//! A late call may try to put the key before the fence is ended. As long as the store has no space, it refuses this put. If the
//! store has space again by then, the put succeeds, and the transaction that ends the fence deletes the key once more.
//!
//! One task per session tries to end the fence, for all remembered entries of the session. As long as this task runs, callers that
//! leave an entry do not try themselves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::TxnKv;
use super::txn::{Change, Transact};
use crate::backend::{EntryRef, SessionId};
use crate::error::Result;
use crate::panics::caught;

/// The pause between two tries to end a write fence.
const PAUSE: Duration = Duration::from_millis(500);
/// How long one try to end a write fence may take.
const LONGEST: Duration = Duration::from_secs(2);
/// How many entries' keys are deleted in one transaction: Consul accepts 64 operations in a transaction, etcd 128.
const AT_ONCE: usize = 48;

impl<T: Transact> TxnKv<T> {
    /// Notes that the store has no space for a put of this session, and starts the session's task if it is not running.
    pub(super) fn await_room(self: &Arc<Self>, session: SessionId) {
        if self.later.begin(session) {
            self.start(session);
        }
    }

    /// For a store that has no space left. Hands the entry over to the session's task. As soon as the store accepts puts again,
    /// the task ends the write fence, deletes the entry's key once more, and allows the key to be used again.
    ///
    /// To be called only after the caller's own delete of the key was answered. If that delete were still under way, it could
    /// delete the next entry with this key.
    pub(super) fn leave_later(self: &Arc<Self>, session: SessionId, entry: &EntryRef) {
        if self.later.add(session, entry) {
            self.start(session);
        }
    }

    fn start(self: &Arc<Self>, session: SessionId) {
        tokio::spawn(Self::leave_when_there_is_room(Arc::downgrade(self), session));
    }

    /// The session's task. It ends when the last entry that was handed over to it is removed, when the session is over, or when the
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

    /// Ends the write fence, and in the same transaction deletes the keys of the remembered entries, which late calls may have put.
    /// Takes at most [`AT_ONCE`] entries at a time, until no entry is left.
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
