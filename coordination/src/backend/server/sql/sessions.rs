//! Sessions: see [`open_sessions`](super::open_sessions).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Dialect, SqlStore};
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl<D: Dialect> Sessions for SqlStore<D> {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        D::tidy(self);
        let epoch = self.epoch();
        self.sessions.renew(session, held, gone).await?;
        if !self.sessions.is_settled(epoch) {
            let (sessions, entries) = (Arc::clone(&self.sessions), Arc::clone(&self.entries));
            // In the background: the lease is extended already, and the heartbeat must not wait for this, or fail with it.
            tokio::spawn(async move {
                // If it fails, the next heartbeat starts it again.
                let _: Result<()> = sessions.settle(session, epoch, &entries).await;
            });
        }
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // Forgotten before the server is asked: even if the call fails, the session's entries do not wait for anything any more.
        self.entries.of(session).iter().for_each(|entry| self.forget(entry));
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.entries.count() + self.sessions.count()
    }
}
