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
        if let Some(all_times) = self.sessions.renew(session, held, gone).await? {
            // In the background, as the heartbeat need not wait for this, and must not fail with it.
            let sessions = Arc::clone(&self.sessions);
            tokio::spawn(async move { sessions.clear_up(all_times).await });
        }
        if !self.sessions.is_settled(epoch) || !self.updates.due(session, &epoch).is_empty() {
            let (sessions, entries) = (Arc::clone(&self.sessions), Arc::clone(&self.entries));
            let updates = Arc::clone(&self.updates);
            // `settle` runs in the background: the lease is extended already, so the heartbeat need not wait for `settle`, and must
            // not fail if `settle` fails.
            tokio::spawn(async move {
                // If `settle` fails, the next heartbeat starts it again.
                let _: Result<()> = sessions.settle(session, epoch, &entries, &updates).await;
            });
        }
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // The entries are forgotten before the server is asked, so that nothing is kept of them even if the call fails.
        self.entries.of(session).iter().for_each(|entry| self.forget(entry));
        self.updates.end(session);
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.entries.count() + self.updates.count() + self.sessions.count()
    }
}
