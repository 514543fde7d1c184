//! Sessions, which live until they are closed.

use std::time::Duration;

use async_trait::async_trait;

use super::Memory;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Memory {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.reach("open")?.open(session).map(|()| None)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        self.reach("renew")?.renew(session, held)?.iter().for_each(gone);
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.close_now(session);
        self.reach("close").map(drop)
    }

    fn close_now(&self, session: SessionId) {
        #[cfg(feature = "testing")]
        self.store.close_later(session);
        #[cfg(not(feature = "testing"))]
        self.store.close(session);
    }
}
