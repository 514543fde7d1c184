//! Sessions: see [`open_sessions`](super::open_sessions).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Mysql;
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Mysql {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        let epoch = self.connections.rotation.epoch();
        self.sessions.renew(session, held, gone).await?;
        if !self.sessions.is_settled(epoch) {
            let (sessions, entries) = (Arc::clone(&self.sessions), Arc::clone(&self.entries));
            // The lease is extended, however long this takes, and whatever becomes of it.
            tokio::spawn(async move {
                let is_known =
                    |id: &EntryId| entries.own(id).is_some_and(|own| own.session == session);
                // The next heartbeat comes again.
                let _: Result<()> = sessions.settle(session, epoch, is_known).await;
            });
        }
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // Whatever the server says.
        self.entries.forget(session);
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.entries.count() + self.sessions.count()
    }
}
