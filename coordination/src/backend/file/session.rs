//! Sessions: opened, renewed and closed. That a session lives is shown by its [locked file](super::liveness).

use std::time::Duration;

use async_trait::async_trait;

use super::liveness::Opened;
use super::{BUSY, FileStore, when_free};
use crate::backend::{EntryId, EntryRef, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

/// How long a sweep may have a member's file locked.
const SWEEPING: Duration = Duration::from_millis(100);

#[async_trait]
impl Sessions for FileStore {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let store = self.store_in_place()?;
        let opened = tokio::time::timeout(SWEEPING, async {
            while let Opened::MemberTaken = store.sessions.open(session)? {
                tokio::time::sleep(BUSY).await;
            }
            Ok(None)
        });
        opened.await.unwrap_or_else(|_| {
            let message = format!("another live process has the member id {:?}", session.member);
            Err(Error::new(ErrorKind::MemberExists, "open", message))
        })
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let store = self.store();
        if !store.is_in_place() || !store.sessions.is_in_place(session)? {
            return Err(Error::lost("renew", LossReason::Revoked));
        }
        let mut gone = Vec::new();
        for entry in held {
            if !when_free(|| store.is_present(entry)).await? {
                gone.push(entry.id.clone());
            }
        }
        Ok(gone)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.store().sessions.close(session)
    }

    fn close_now(&self, session: SessionId) {
        // Closing the file, which happens anyway, would end it as well.
        let _ = self.store().sessions.close(session);
    }
}
