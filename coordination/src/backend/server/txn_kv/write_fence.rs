//! Which calls of a session still count.
//!
//! A call that was given up may reach the servers much later: one that stands still for seconds passes on what it had
//! when it goes on. So an entry is put, and a value created, on condition of the version in which its member's key was
//! last put, the session's *write fence*. Where an entry is removed that such a call may still put, or a value was
//! written that one may still create, the member's key is put anew: from then on nothing that was sent before has an
//! effect. Calls under way are refused, too, and made anew. So that is done as seldom as can be: once for all calls
//! that were given up under a write fence.

use std::sync::{Mutex, MutexGuard};

use super::TxnKv;
use super::txn::{Change, Kept, Outcome, Transact, Txn, WriteFence};
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// Those of the sessions that are open, in the order in which they were opened.
#[derive(Default)]
pub(crate) struct WriteFences(Mutex<Vec<WriteFence>>);

/// The turn of whoever ends a write fence.
pub(super) type EndingTurn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl WriteFences {
    /// The member's key was put in this version.
    pub(crate) fn note(&self, session: SessionId, key: &str, version: u64) {
        let mut all = self.all();
        match all.iter_mut().find(|write_fence| write_fence.session == session) {
            // Answers may overtake each other.
            Some(write_fence) => write_fence.version = write_fence.version.max(version),
            None => all.push(WriteFence { session, key: key.into(), version }),
        }
    }

    /// The session's, as far as is known.
    pub(crate) fn of(&self, session: SessionId) -> Result<WriteFence> {
        let all = self.all();
        let own = all.iter().find(|write_fence| write_fence.session == session);
        own.cloned().ok_or_else(over)
    }

    /// That of a session that is open, for what belongs to none.
    pub(crate) fn any(&self) -> Result<WriteFence> {
        // Of several the last one: that before may be over. The versions do not tell: a store that has lost its data
        // begins anew.
        self.all().last().cloned().ok_or_else(no_session)
    }

    /// The session is over: what belongs to none goes by another one from now on.
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
    /// Ends this write fence for whatever was sent under it, and makes these changes. False: it had ended before, and they were
    /// not made.
    pub(crate) async fn end(
        &self,
        operation: &'static str,
        write_fence: &WriteFence,
        changes: Vec<Change>,
    ) -> Result<bool> {
        let turn = self.ending_turn().await;
        self.end_in_turn(&turn, operation, write_fence, changes).await
    }

    /// One after the other: the first ends a write fence for all, and the others see that when their turn comes.
    pub(super) async fn ending_turn(&self) -> EndingTurn<'_> {
        self.ending.lock().await
    }

    /// [`end`](Self::end) by whom it is the turn of.
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
                // By a call whose answer was lost.
                self.learn(write_fence, found.into_iter().next().flatten().as_ref())?;
                Ok(false)
            }
        }
    }

    /// A write fence did not hold, and this was read of its key.
    pub(crate) fn learn(&self, write_fence: &WriteFence, found: Option<&Kept>) -> Result<()> {
        let WriteFence { session, key, version } = write_fence;
        // An older version than the one that is known: the store has lost what came later.
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

/// What belongs to no session finds none whose write fence it could ask for.
pub(crate) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "write", "no session is open at the moment")
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
