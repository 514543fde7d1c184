//! Waiting for a change. The waiter is woken by [notifications](super::inotify). If the system grants no notifications, the waiter
//! [polls](super::polls).

use std::time::Duration;

use async_trait::async_trait;

use super::file_store::{FileStore, when_free};
use super::liveness::session_of;
use super::polls::{POLL, Poll, PollOfEntry, PollOfQueue};
use super::store::Store;
use crate::backend::{EntryRef, Mode, SessionId, Watching};
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
        let store = self.store();
        let is_gone = || Some(store.blocks(entry, seq, waiter)?.map(|blocks| !blocks));
        let session = SessionId::parse(session_of(entry.id.as_str()));
        let poll = PollOfEntry::new(&store, entry, seq, waiter, recheck);
        until(&store, &entry.queue, session, recheck, is_gone, poll).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let store = self.store();
        let is_another = || Some(store.revision(queue)?.map(|now| now != revision));
        let poll = PollOfQueue::new(&store, queue, revision, recheck);
        let changed = until(&store, queue, None, recheck, is_another, poll);
        tokio::time::timeout(recheck, changed).await.unwrap_or(Ok(()))
    }
}

/// Waits until `is_so` returns true. Calls `is_so` when the queue has changed, when a session has ended (`session`, or any session
/// if `session` is `None`), and at least once in each `recheck`. While the system grants no notifications, asks `poll` instead.
async fn until(
    store: &Store,
    queue: &QueueKey,
    session: Option<SessionId>,
    recheck: Duration,
    is_so: impl Fn() -> Option<Result<bool>>,
    mut poll: impl Poll,
) -> Result<()> {
    loop {
        // Each round starts to listen again, because the queue's file may have been replaced by another file.
        let Some(waiting) = store.listen(queue, session)? else {
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
