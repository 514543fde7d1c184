//! Waiting for a change. The waiter is woken by [notifications](super::inotify). If the system grants no notifications, the waiter
//! [polls](super::polls).

use std::time::Duration;

use async_trait::async_trait;

use super::file_store::{FileStore, when_free};
#[cfg(linux_kernel)]
use super::inotify::Waiting;
use super::liveness::session_of;
#[cfg(not(linux_kernel))]
use super::polling::Waiting;
use super::polls::{POLL, Poll, PollOfEntry, PollOfQueue};
use crate::backend::{Blocker, EntryRef, Mode, NewEntry, SessionId, Watching};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Watching for FileStore {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        self.until_gone(entry, seq, waiter, None, recheck).await
    }

    async fn unblocked(&self, own: &NewEntry, blocker: &Blocker, recheck: Duration) -> Result<()> {
        let entry = EntryRef { queue: own.entry_ref.queue.clone(), id: blocker.id.clone() };
        self.until_gone(&entry, blocker.seq, own.mode, Some(own.session), recheck).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let store = self.store();
        let is_another = || Some(store.revision(queue)?.map(|now| now != revision));
        let poll = PollOfQueue::new(&store, queue, revision, recheck);
        let listen = || store.listen(queue, None, None);
        let changed = until(listen, recheck, is_another, poll);
        tokio::time::timeout(recheck, changed).await.unwrap_or(Ok(()))
    }
}

impl FileStore {
    /// `heir`: the session of the waiter's own entry, if the entry that is waited for blocks that one.
    async fn until_gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        heir: Option<SessionId>,
        recheck: Duration,
    ) -> Result<()> {
        let store = self.store();
        let is_gone = || Some(store.blocks(entry, seq, waiter)?.map(|blocks| !blocks));
        let session = SessionId::parse(session_of(entry.id.as_str()));
        let listen = || store.listen(&entry.queue, session, heir.map(|heir| (seq, heir)));
        let poll = PollOfEntry::new(&store, entry, seq, waiter, recheck);
        until(listen, recheck, is_gone, poll).await
    }
}

/// Waits until `is_so` returns true. Calls `is_so` at each notification to which `listen` subscribes, and at least once in each
/// `recheck`. While the system grants no notifications, asks `poll` instead.
async fn until(
    listen: impl Fn() -> Result<Option<Waiting>>,
    recheck: Duration,
    is_so: impl Fn() -> Option<Result<bool>>,
    mut poll: impl Poll,
) -> Result<()> {
    loop {
        // Each round starts to listen again, because the queue's file may have been replaced by another file.
        let Some(waiting) = listen()? else {
            if when_free(|| poll.look()).await? {
                return Ok(());
            }
            tokio::time::sleep(POLL.min(recheck)).await;
            continue;
        };
        // If another process has the short lock, `is_so` is called again and again until it gets the lock. To wait for a
        // notification would not be enough: that process may only be reading, and then no notification comes.
        if waiting.unless(when_free(&is_so), recheck).await? {
            return Ok(());
        }
    }
}
