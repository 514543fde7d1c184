//! Implements [`Sessions`] with [`open_sessions`](super::open_sessions).

use std::time::Duration;

use async_trait::async_trait;

use super::Zookeeper;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::{LossReason, Result};
use crate::time::BootInstant;

#[async_trait]
impl Sessions for Zookeeper {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session, &self.tree).await.map(Some)
    }

    fn asked(&self, session: SessionId) -> Option<BootInstant> {
        self.sessions.asked(session)
    }

    async fn renew(&self, session: SessionId, _: &[EntryRef], _: &Gone<'_>) -> Result<()> {
        self.sessions.renew(session).await
    }

    async fn ended(&self, session: SessionId) -> LossReason {
        self.sessions.ended(session).await
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // Forgets the session's entries before anything else, so that they are forgotten even if this call fails or is dropped
        // later (the rule `forgets`).
        self.own.forget(session);
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.own.count() + self.sessions.count()
    }

    fn close_now(&self, session: SessionId) {
        self.sessions.close_now(session);
    }
}
