//! Sessions: see [`open_sessions`](super::open_sessions).

use std::time::Duration;

use async_trait::async_trait;

use super::Consul;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Consul {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let member_key = self.txn_kv.member_key(&session.member);
        let index = self.sessions.open(session, &member_key).await?;
        self.txn_kv.write_fences.note(session.id, &member_key, index);
        Ok(Some(session.ttl))
    }

    async fn renew(&self, session: SessionId, _: &[EntryRef], _: &Gone<'_>) -> Result<()> {
        let renewed = self.sessions.renew(session).await;
        if renewed.as_ref().is_err_and(|error| error.loss_reason().is_some()) {
            self.txn_kv.write_fences.forget(session);
        }
        renewed?;
        self.leftovers.sweep();
        self.older_data.look(&self.txn_kv, session)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // The entries are forgotten before the request is sent, so that they are forgotten even if the request fails or this call
        // is dropped (the rule `forgets`).
        self.txn_kv.forget(session);
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.txn_kv.kept() + self.sessions.count()
    }
}
