//! Which calls of a session still count.
//!
//! A call that was given up may reach the servers much later: a leader that stands still for seconds passes on what
//! it had when it goes on. So an entry is put, and a value created, on condition of the revision in which its member's
//! key was last put, the session's *admission*. Where an entry is removed that may still be put by such a call, or a
//! value was written that may still be created by one, the member's key is put anew: from then on nothing that was
//! sent before has an effect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};

use super::client::Connections;
use super::session::lease_of;
use super::{found, revision_in};
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// Those of the sessions that are open.
#[derive(Default)]
pub(super) struct Admissions(Mutex<HashMap<SessionId, Admission>>);

/// Holds as long as the member's key has this revision.
#[derive(Clone)]
pub(super) struct Admission {
    pub(super) session: SessionId,
    key: Arc<str>,
    revision: i64,
}

impl Admissions {
    /// The member's key was put in this revision.
    pub(super) fn note(&self, session: SessionId, key: &str, revision: i64) {
        let mut all = self.all();
        let admission =
            all.entry(session).or_insert_with(|| Admission { session, key: key.into(), revision });
        // Answers may overtake each other.
        admission.revision = admission.revision.max(revision);
    }

    /// The session's, as far as is known.
    pub(super) fn of(&self, session: SessionId) -> Result<Admission> {
        self.all().get(&session).cloned().ok_or_else(over)
    }

    /// That of a session that is open, for what belongs to none.
    pub(super) fn any(&self) -> Result<Admission> {
        // Of several the last one: that before may be over.
        let newest = self.all().values().max_by_key(|admission| admission.revision).cloned();
        newest.ok_or_else(no_session)
    }

    /// Does this, and ends the admission of whatever may still be on its way.
    pub(super) async fn admit_anew(
        &self,
        connections: &Arc<Connections>,
        operation: &'static str,
        session: SessionId,
        before: Option<TxnOp>,
    ) -> Result<()> {
        for _ in 0..2 {
            let admission = self.of(session)?;
            let change = Txn::new()
                .when([admission.holds()])
                .and_then(before.iter().cloned().chain([admission.renew()]).collect::<Vec<_>>())
                .or_else([admission.read()]);
            let changed = connections
                .call(operation, |client| async move { client.kv_client().txn(change).await });
            let answer = changed.await?;
            if answer.succeeded() {
                self.note(session, &admission.key, revision_in(answer.header()));
                return Ok(());
            }
            self.learn(&admission, found(&answer, 0).first())?;
        }
        let message = "other calls were in doubt meanwhile";
        Err(Error::new(ErrorKind::Unavailable, operation, message))
    }

    /// What was read of the member's key.
    pub(super) fn learn(&self, admission: &Admission, found: Option<&KeyValue>) -> Result<()> {
        let own = found.filter(|kv| kv.lease() == lease_of(admission.session)).ok_or_else(over)?;
        self.note(admission.session, &admission.key, own.mod_revision());
        Ok(())
    }

    pub(super) fn forget(&self, session: SessionId) {
        self.all().remove(&session);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Admission>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Admission {
    pub(super) fn holds(&self) -> Compare {
        Compare::mod_revision(&*self.key, CompareOp::Equal, self.revision)
    }

    /// Ends it; the next one has the revision in which this is done.
    fn renew(&self) -> TxnOp {
        let put = PutOptions::new().with_lease(lease_of(self.session));
        TxnOp::put(&*self.key, self.session.to_string(), Some(put))
    }

    /// Whether the member's key, as it was read, is the one that was put then.
    pub(super) fn is_of(&self, found: &KeyValue) -> bool {
        found.mod_revision() == self.revision
    }

    /// For [`Admissions::learn`].
    pub(super) fn read(&self) -> TxnOp {
        TxnOp::get(&*self.key, Some(GetOptions::new().with_keys_only()))
    }
}

/// What belongs to no session finds none whose admission it could ask for.
pub(super) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "write", "no session is open at the moment")
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
