//! Write fences. They keep calls that were given up from taking effect later.
//!
//! A call that was given up may reach the servers much later: if a proxy or a server was suspended for seconds, it passes the call
//! on when it resumes. A call counts as given up if no answer to it came, whether or not its caller still waits, and even if the
//! same call was sent again and that one was answered.
//!
//! So each put of an entry, and each creation of a value, has a condition: the member's key, which the session has put when it was
//! opened, must still have the version that it had when the call was sent. That version is the session's *write fence*. To end the
//! fence, the member's key is put anew, which gives it another version. From then on the store refuses all calls that were sent
//! under the old version.
//!
//! A fence is ended if a call that puts an entry was given up, and the entry is to be removed. A fence is also ended if one call of
//! a write that creates a value was given up, and another call of this write was answered.
//!
//! The end of a fence has a price: other calls that are under way at that moment are refused too, and have to be sent again. So a
//! fence is ended as seldom as possible: one end serves all calls that were given up under the fence.

use std::sync::{Mutex, MutexGuard};

use super::TxnKv;
use super::txn::{Change, Kept, Outcome, Transact, Txn, WriteFence};
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// The write fences of the open sessions, in the order in which the sessions were opened.
#[derive(Default)]
pub(crate) struct WriteFences(Mutex<Vec<WriteFence>>);

/// The permission to end a write fence. Only one task at a time has it.
pub(super) type EndingTurn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl WriteFences {
    /// Notes that the session's member's key was put, and has this version now: this is the session's write fence.
    pub(crate) fn note(&self, session: SessionId, key: &str, version: u64) {
        let mut all = self.all();
        match all.iter_mut().find(|write_fence| write_fence.session == session) {
            // The answer of an earlier put may come after the answer of a later put, so the highest version is kept.
            Some(write_fence) => write_fence.version = write_fence.version.max(version),
            None => all.push(WriteFence { session, key: key.into(), version }),
        }
    }

    /// The write fence of this session, as far as this process knows it. Fails if the session is over.
    pub(crate) fn of(&self, session: SessionId) -> Result<WriteFence> {
        let all = self.all();
        let own = all.iter().find(|write_fence| write_fence.session == session);
        own.cloned().ok_or_else(over)
    }

    /// The write fence of one of this process's open sessions, for a write of a value, which belongs to no session.
    pub(crate) fn any(&self) -> Result<WriteFence> {
        // Takes the fence of the session that was opened last, because an earlier session may be over. The fence with the highest
        // version would not do: after a store has lost its data, a newer session gets a lower version.
        self.all().last().cloned().ok_or_else(no_session)
    }

    /// Forgets a session that is over. Writes of values use the write fence of another session from now on.
    pub(crate) fn forget(&self, session: SessionId) {
        self.all().retain(|write_fence| write_fence.session != session);
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, Vec<WriteFence>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T: Transact> TxnKv<T> {
    /// Ends this write fence for all calls that were sent under it, and makes these changes in the same transaction. False: the
    /// fence had been ended before, and the changes were not made.
    pub(crate) async fn end(
        &self,
        operation: &'static str,
        write_fence: &WriteFence,
        changes: Vec<Change>,
    ) -> Result<bool> {
        let turn = self.ending_turn().await;
        self.end_in_turn(&turn, operation, write_fence, changes).await
    }

    /// Waits until no other task is ending a write fence. If several tasks want to end the same fence, the first one ends it for
    /// all, and each of the others finds the fence ended when it gets the permission. Without this permission, each of them would
    /// put the member's key once more, and after each put the store would refuse the calls that were sent since the put before.
    pub(super) async fn ending_turn(&self) -> EndingTurn<'_> {
        self.ending.lock().await
    }

    /// Like [`end`](Self::end), for a task that has the permission already.
    pub(super) async fn end_in_turn(
        &self,
        _turn: &EndingTurn<'_>,
        operation: &'static str,
        write_fence: &WriteFence,
        mut changes: Vec<Change>,
    ) -> Result<bool> {
        if self.write_fences.of(write_fence.session)?.version > write_fence.version {
            return Ok(false);
        }
        changes.push(write_fence.renew());
        let anew = Txn {
            conditions: vec![write_fence.holds()],
            changes,
            looks: vec![write_fence.key.to_string()],
        };
        match self.store.commit(operation, anew).await? {
            Outcome::Done(version) => {
                self.write_fences.note(write_fence.session, &write_fence.key, version);
                Ok(true)
            }
            Outcome::Refused(found) => {
                // An earlier call, whose answer was lost, may have ended the write fence already. Or the session is over, and then
                // `learn` fails.
                self.learn(write_fence, found.into_iter().next().flatten().as_ref())?;
                Ok(false)
            }
        }
    }

    /// Called when a transaction was refused because `write_fence` did not hold. `found` is the member's key as it was read then:
    /// its version is the session's current write fence. Fails if the session is over.
    pub(crate) fn learn(&self, write_fence: &WriteFence, found: Option<&Kept>) -> Result<()> {
        let WriteFence { session, key, version } = write_fence;
        // If the version is lower than the known one, the store has lost its latest data, and the session with it.
        match found.filter(|kept| self.is_of(kept, *session) && kept.version >= *version) {
            Some(own) => self.write_fences.note(*session, key, own.version),
            None => {
                self.write_fences.forget(*session);
                return Err(over());
            }
        }
        Ok(())
    }
}

/// The error for a write of a value when no session is open whose write fence could be used.
pub(crate) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "write", "no session is open at the moment")
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
