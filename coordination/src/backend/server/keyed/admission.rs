//! Which calls of a session still count.
//!
//! A call that was given up may reach the servers much later: one that stands still for seconds passes on what it had
//! when it goes on. So an entry is put, and a value created, on condition of the version in which its member's key was
//! last put, the session's *admission*. Where an entry is removed that such a call may still put, or a value was
//! written that one may still create, the member's key is put anew: from then on nothing that was sent before has an
//! effect. Calls under way are refused, too, and made anew. So that is done as seldom as can be: once for all calls
//! that were given up under an admission.

use std::sync::{Mutex, MutexGuard};

use super::Keyed;
use super::txn::{Admission, Change, Kept, Outcome, Transact, Txn};
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// Those of the sessions that are open, in the order in which they were opened.
#[derive(Default)]
pub(crate) struct Admissions(Mutex<Vec<Admission>>);

impl Admissions {
    /// The member's key was put in this version.
    pub(crate) fn note(&self, session: SessionId, key: &str, version: u64) {
        let mut all = self.all();
        match all.iter_mut().find(|admission| admission.session == session) {
            // Answers may overtake each other.
            Some(admission) => admission.version = admission.version.max(version),
            None => all.push(Admission { session, key: key.into(), version }),
        }
    }

    /// The session's, as far as is known.
    pub(crate) fn of(&self, session: SessionId) -> Result<Admission> {
        let all = self.all();
        let own = all.iter().find(|admission| admission.session == session);
        own.cloned().ok_or_else(over)
    }

    /// That of a session that is open, for what belongs to none.
    pub(crate) fn any(&self) -> Result<Admission> {
        // Of several the last one: that before may be over. The versions do not tell: a store that has lost its data
        // begins anew.
        self.all().last().cloned().ok_or_else(no_session)
    }

    /// The session is over: what belongs to none goes by another one from now on.
    pub(crate) fn forget(&self, session: SessionId) {
        self.all().retain(|admission| admission.session != session);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Admission>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T: Transact> Keyed<T> {
    /// Ends this admission for whatever was sent under it, and does this. False: it had ended before, and this was not
    /// done.
    pub(crate) async fn end(
        &self,
        operation: &'static str,
        admission: &Admission,
        change: Option<Change>,
    ) -> Result<bool> {
        // One after the other: the first ends it for all, and the others see that when their turn comes.
        let _turn = self.ending.lock().await;
        if self.admissions.of(admission.session)?.version > admission.version {
            return Ok(false);
        }
        let anew = Txn {
            conditions: vec![admission.holds()],
            changes: change.into_iter().chain([admission.renew()]).collect(),
            looks: vec![admission.key.to_string()],
        };
        match self.store.commit(operation, anew).await? {
            Outcome::Done(version) => {
                self.admissions.note(admission.session, &admission.key, version);
                Ok(true)
            }
            Outcome::Refused(found) => {
                // By a call whose answer was lost.
                self.learn(admission, found.into_iter().next().flatten().as_ref())?;
                Ok(false)
            }
        }
    }

    /// An admission did not hold, and this was read of its key.
    pub(crate) fn learn(&self, admission: &Admission, found: Option<&Kept>) -> Result<()> {
        let Admission { session, key, version } = admission;
        // An older version than the one that is known: the store has lost what came later.
        match found.filter(|kept| self.is_of(kept, *session) && kept.version >= *version) {
            Some(own) => self.admissions.note(*session, key, own.version),
            None => {
                self.admissions.forget(*session);
                return Err(over());
            }
        }
        Ok(())
    }
}

/// What belongs to no session finds none whose admission it could ask for.
pub(crate) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "write", "no session is open at the moment")
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
