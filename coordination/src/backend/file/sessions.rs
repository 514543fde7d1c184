//! Sessions: opened, renewed and closed. That a session lives is shown by its [locked file](super::liveness).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::liveness::Opened;
use super::{BUSY, FileStore};
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

/// How long a live session is to have a member id until that is told: who only looks at its file may make it look alive.
const ALIVE: Duration = Duration::from_millis(100);
/// How long files that are looked at are tried for. Who looks does so for microseconds, but a busy machine may stop him.
const LOOKED_AT: Duration = Duration::from_secs(3);

#[async_trait]
impl Sessions for FileStore {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let store = self.store_in_place()?;
        let begun = Instant::now();
        let mut taken = None;
        loop {
            match store.open_session(session)? {
                Opened::Yes => return Ok(None),
                Opened::MemberTaken => {
                    if taken.get_or_insert_with(Instant::now).elapsed() >= ALIVE {
                        let message =
                            format!("another live process has the member id {:?}", session.member);
                        return Err(Error::new(ErrorKind::MemberExists, "open", message));
                    }
                }
                Opened::NotYet => {
                    taken = None;
                    if begun.elapsed() >= LOOKED_AT {
                        let message = "somebody who looks at the session's files does not go on";
                        return Err(Error::new(ErrorKind::Unavailable, "open", message));
                    }
                }
            }
            tokio::time::sleep(BUSY).await;
        }
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        let store = self.store();
        // A path that cannot be looked at now says nothing, and all else goes by the directories that are open.
        let is_in_place = store.is_in_place();
        if matches!(is_in_place, Ok(false)) || !store.sessions.keep(session)? {
            return Err(Error::lost("renew", LossReason::Revoked));
        }
        store.keep_floor();
        store.look_after(held, gone).await;
        is_in_place.map(drop)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.store().sessions.close(session)
    }

    fn close_now(&self, session: SessionId) {
        // Closing the file, which happens anyway, would end it as well.
        let _ = self.store().sessions.close(session);
    }

    fn session_file(&self, session: SessionId) -> Result<Option<OwnedFd>> {
        self.store().sessions.file(session)
    }
}
