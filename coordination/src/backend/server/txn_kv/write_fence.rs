//! Write fences: they keep a call that was given up from taking effect later.
//!
//! A call that was given up may reach the servers much later: if a proxy or a server was suspended for seconds, it passes the
//! call on when it resumes. So each put of an entry, and each creation of a value, has a condition: the member's key must have
//! the version that it had when the call was sent. That version is the session's *write fence*. To end the fence, the member's
//! key is put anew: from then on no call that was sent under the old version has an effect. This is done when an entry is
//! removed, or a value was written, while a given-up call may still put the same entry or create the same value.
//!
//! To end a fence has a price: other calls that are under way at that moment are refused too, and have to be made anew. So a
//! fence is ended as seldom as possible: once for all calls that were given up under it.

use std::sync::{Mutex, MutexGuard};

use super::TxnKv;
use super::txn::{Change, Kept, Outcome, Transact, Txn, WriteFence};
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// The write fences of the open sessions, in the order in which the sessions were opened.
#[derive(Default)]
pub(crate) struct WriteFences(Mutex<Vec<WriteFence>>);

/// Permission to end a write fence, which one task has at a time.
pub(super) type EndingTurn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl WriteFences {
    /// Notes that the member's key was put in this version.
    pub(crate) fn note(&self, session: SessionId, key: &str, version: u64) {
        let mut all = self.all();
        match all.iter_mut().find(|write_fence| write_fence.session == session) {
            // The answer of an earlier put may come after that of a later one, so the highest version counts.
            Some(write_fence) => write_fence.version = write_fence.version.max(version),
            None => all.push(WriteFence { session, key: key.into(), version }),
        }
    }

    /// The write fence of this session, as far as this process knows.
    pub(crate) fn of(&self, session: SessionId) -> Result<WriteFence> {
        let all = self.all();
        let own = all.iter().find(|write_fence| write_fence.session == session);
        own.cloned().ok_or_else(over)
    }

    /// The write fence of some open session, for a value, which belongs to no session.
    pub(crate) fn any(&self) -> Result<WriteFence> {
        // Takes the fence of the session that was opened last, as an earlier session may be over. The versions do not tell which
        // fence is newer: a store that has lost its data begins anew with low versions.
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
    /// Ends this write fence for all calls that were sent under it, and makes these changes in the same transaction. False: it
    /// had ended before, and the changes were not made.
    pub(crate) async fn end(
        &self,
        operation: &'static str,
        write_fence: &WriteFence,
        changes: Vec<Change>,
    ) -> Result<bool> {
        let turn = self.ending_turn().await;
        self.end_in_turn(&turn, operation, write_fence, changes).await
    }

    /// Lets one task at a time end a write fence. The first one ends the fence for all who wait, and each of the others finds the
    /// fence ended when its turn comes. Without turns each of them would put the member's key once more, and every such put
    /// refuses the calls that were sent since the put before.
    pub(super) async fn ending_turn(&self) -> EndingTurn<'_> {
        self.ending.lock().await
    }

    /// [`end`](Self::end), by the task that has the turn.
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
                // The write fence was ended by an earlier call whose answer was lost.
                self.learn(write_fence, found.into_iter().next().flatten().as_ref())?;
                Ok(false)
            }
        }
    }

    /// Learns the current write fence from the member's key, which was read after `write_fence` did not hold.
    pub(crate) fn learn(&self, write_fence: &WriteFence, found: Option<&Kept>) -> Result<()> {
        let WriteFence { session, key, version } = write_fence;
        // A version that is older than the known one means that the store has lost its later data, and the session with it.
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

/// A write of a value needs the write fence of an open session, and there is none.
pub(crate) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "write", "no session is open at the moment")
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
