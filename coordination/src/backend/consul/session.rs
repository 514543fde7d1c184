//! Sessions: see [`sessions`](super::sessions).

use std::time::Duration;

use async_trait::async_trait;

use super::Consul;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Consul {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let member_key = self.keyed.member_key(&session.member);
        let index = self.sessions.open(session, &member_key).await?;
        self.keyed.admissions.note(session.id, &member_key, index);
        Ok(Some(session.ttl))
    }

    async fn renew(&self, session: SessionId, _: &[EntryRef], _: &Gone<'_>) -> Result<()> {
        let renewed = self.sessions.renew(session).await;
        if renewed.as_ref().is_err_and(|error| error.loss_reason().is_some()) {
            self.keyed.admissions.forget(session);
        }
        renewed
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.keyed.admissions.forget(session);
        self.sessions.close(session).await?;
        self.keyed.forget(session);
        Ok(())
    }
}
