//! Which calls of a session still count.
//!
//! A call that was given up may reach the servers much later: a leader that stands still for seconds passes on what
//! it had when it goes on. So an entry is put on condition of the revision in which its member's key was last
//! put, the session's *admission*. Where an entry is removed that may still be put by such a call, the member's
//! key is put anew with it: from then on nothing that was sent before has an effect.

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
    session: SessionId,
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

    /// Removes an entry's key, and ends the admission of whatever may still be on its way to put it again.
    pub(super) async fn remove(
        &self,
        connections: &Connections,
        session: SessionId,
        key: &str,
    ) -> Result<()> {
        for _ in 0..2 {
            let admission = self.of(session)?;
            let remove = Txn::new()
                .when([admission.holds()])
                .and_then([TxnOp::delete(key, None), admission.renew()])
                .or_else([admission.read()]);
            let removed = connections.call("leave", |client| {
                let remove = remove.clone();
                async move { client.kv_client().txn(remove).await }
            });
            let answer = removed.await?;
            if answer.succeeded() {
                self.note(session, &admission.key, revision_in(answer.header()));
                return Ok(());
            }
            self.learn(&admission, found(&answer, 0).first())?;
        }
        Err(Error::new(ErrorKind::Unavailable, "leave", "other calls were in doubt meanwhile"))
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

    /// For [`Admissions::learn`].
    pub(super) fn read(&self) -> TxnOp {
        TxnOp::get(&*self.key, Some(GetOptions::new().with_keys_only()))
    }
}

fn over() -> Error {
    Error::lost("enter", LossReason::ExpiredByServer)
}
