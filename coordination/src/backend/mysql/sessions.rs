//! Sessions: see [`open_sessions`](super::open_sessions).

use std::time::Duration;

use async_trait::async_trait;

use super::Mysql;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Mysql {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        self.sessions.renew(session, held, gone).await?;
        self.sessions.settle(session, || self.entries.of(session)).await
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
