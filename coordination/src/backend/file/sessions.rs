//! Sessions: opened, renewed and closed. A session's [locked file](super::liveness) shows that it lives.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::liveness::Opened;
use super::{BUSY, FileStore};
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

/// A member id counts as taken only after a live session has had it for this long. A process that only checks whether a member's
/// file is locked locks it for a moment as well.
const ALIVE: Duration = Duration::from_millis(100);
/// How long `open` tries again while another process, which only checks whether a file is locked, has locked it itself. That takes
/// microseconds, unless the machine is busy and stops the process in between.
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
        // An error here says nothing about the session: all other steps use the directories that are open, and not the path. So the
        // error is returned only after the other steps.
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
        // If this fails, the session ends with the process, which closes the file.
        let _ = self.store().sessions.close(session);
    }

    fn session_file(&self, session: SessionId) -> Result<Option<OwnedFd>> {
        self.store().sessions.file(session)
    }
}
