//! Who is woken by which change of a queue.
//!
//! A waiter whose own entry is blocked by the entry that it waits for is found in the queue's log by whoever removes that entry, and
//! is woken alone, by a [datagram](super::sockets). All others are woken by each change of the file.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::inotify::{Told, Waiting, Wanted};
use super::liveness::session_of;
use super::queue::{self, Locked};
use super::store::Store;
use super::system;
use crate::backend::SessionId;
use crate::error::Result;
use crate::key::QueueKey;

/// How many sessions are told one by one that an entry goes. If there are more, all who wait for the file are woken.
const MOST_TOLD: usize = 16;

impl Store {
    /// Starts to listen for changes of the queue, and for the end of a session: of `session`, or of any session if `session` is
    /// `None`. If the entry with the number `seq` blocks an entry of the waiter's session `own`, `blocker` is `(seq, own)`. Returns
    /// `None` if the system grants no more watches.
    pub(super) fn listen(
        &self,
        key: &QueueKey,
        session: Option<SessionId>,
        blocker: Option<(u64, SessionId)>,
    ) -> Result<Option<Waiting>> {
        if !system::notifies() {
            return Ok(None);
        }
        drop(self.queue(key)?);
        let file = queue::file_name(key);
        let wanted = Wanted {
            queue: &self.queues.path().join(&file),
            sessions: self.sessions.directory().path(),
            session,
            // A process of another host reaches no socket here.
            told: blocker.filter(|_| !self.is_on_network).map(|(seq, own)| Told {
                sockets: &self.sessions.sockets,
                session: own,
                file: &file,
                seq,
            }),
        };
        Ok(self.watcher.listen(&wanted, || self.open_files.close_idle()))
    }

    /// To be called at each heartbeat of this session.
    pub(super) fn keep_socket(&self, session: SessionId) {
        if self.sessions.sockets.has_lost_its_file(session) {
            self.watcher.wake_all();
        }
    }

    /// Wakes those whose entries are blocked by this entry, which is about to leave or to become shared. To be called under the
    /// queue's short lock: whoever is woken needs that lock to look, and so finds the change.
    pub(super) fn wake_blocked(&self, queue: &Locked<'_>, seq: u64) {
        let file = queue.file_name();
        let blocked = queue.log().blocked_by(seq).map(|record| session_of(&record.id));
        let blocked: BTreeSet<_> = blocked.filter_map(SessionId::parse).collect();
        if blocked.is_empty() {
            return;
        }
        let is_told = |session: &&SessionId| {
            if self.sessions.is_own(**session) {
                self.watcher.tell(file, seq);
                return true;
            }
            self.sessions.sockets.send(**session, file, seq)
        };
        // Datagrams reach no process of another host.
        if !self.is_on_network && blocked.len() <= MOST_TOLD {
            let told = blocked.iter().filter(is_told).count();
            if told == blocked.len() {
                return;
            }
        }
        if let Err(error) = self.queues.touch(file) {
            tracing::debug!(%error, "cannot wake those who wait: they look again by themselves");
        }
    }
}
