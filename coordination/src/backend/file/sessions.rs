//! Sessions: opened, renewed and closed. As long as a session lives, it has a [locked file](super::liveness), which shows others
//! that it lives.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::file_store::{BUSY, FileStore};
use super::liveness::Opened;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

/// For how long `open` must find a member id in use before it fails with `MemberExists`. A process that only checks whether a
/// member's file is locked has to lock the file itself for a moment, and must not be taken for a live owner.
const ALIVE: Duration = Duration::from_millis(100);
/// How long `open` tries again while another process has a file locked only to check whether its owner lives. Such a check takes
/// microseconds, unless the machine is busy and stops that process in between.
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
        // If `is_in_place` is an error, that says nothing about the session: the calls below use the directories that are open, and
        // not their paths. So this error is returned only after these calls were made.
        let is_in_place = store.is_in_place();
        if matches!(is_in_place, Ok(false)) || !store.sessions.keep(session)? {
            return Err(Error::lost("renew", LossReason::Revoked));
        }
        store.keep_socket(session);
        store.keep_floor();
        store.look_after(held, gone).await;
        is_in_place.map(drop)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.store().sessions.close(session)
    }

    fn close_now(&self, session: SessionId) {
        // If this fails, the session ends together with the process, whose end closes the file.
        let _ = self.store().sessions.close(session);
    }

    fn session_file(&self, session: SessionId) -> Result<Option<OwnedFd>> {
        self.store().sessions.file(session)
    }
}
