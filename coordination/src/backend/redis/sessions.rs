//! Sessions: see [`open_sessions`](super::open_sessions).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Redis;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Redis {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        let connections = Arc::clone(&self.connections);
        // The sweep runs in the background, because the heartbeat must not wait for it.
        tokio::spawn(async move { connections.sweep().await });
        self.sessions.renew(session, held, gone).await?;
        self.sessions.settle(session, || self.entries.of(session)).await
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // Even if this call fails or is dropped, nobody waits for the session's entries any longer (`forgets`).
        let left = self.entries.forget(session);
        left.iter().filter_map(|own| own.known.as_ref()).for_each(|wait| self.hub.forget(wait));
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.entries.count() + self.sessions.count()
    }
}
