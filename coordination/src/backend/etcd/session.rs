//! Sessions: see [`sessions`](super::sessions).

use std::time::Duration;

use async_trait::async_trait;

use super::Etcd;
use super::entry::number;
use crate::backend::{EntryId, EntryRef, NewSession, SessionId, Sessions};
use crate::error::Result;
use crate::key;

#[async_trait]
impl Sessions for Etcd {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let member_key = format!("{}/member/{}", self.namespace, key::encode(&session.member));
        let (granted, revision) =
            self.sessions.open(&self.connections, session, &member_key).await?;
        self.keyed.admissions.note(session.id, &member_key, number(revision));
        Ok(Some(granted))
    }

    async fn renew(&self, session: SessionId, _held: &[EntryRef]) -> Result<Vec<EntryId>> {
        self.sessions.renew(&self.connections, session).await.map(|()| Vec::new())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.sessions.close(&self.connections, session).await?;
        self.keyed.forget(session);
        Ok(())
    }
}
