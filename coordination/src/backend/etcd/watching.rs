//! Waiting: for the end of an entry, and for a change of a queue.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::GetOptions;
use tokio::time::timeout;

use super::Etcd;
use super::active_watches::{PAUSE, Scope, Watch};
use super::entry::{blocker_of, revision_of, seq_of};
use super::txn::revision_in;
use crate::backend::server::in_time;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Watching for Etcd {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let key = self.txn_kv.key(entry);
        let created = revision_of(seq);
        // A put on the blocker's key is an update of the blocker's entry. Only a shared waiter may stop being blocked by an update,
        // so exclusive waiters watch only for the key's deletion.
        let scope = if waiter == Mode::Shared { Scope::Key } else { Scope::Deletion };
        let mut must_look = false;
        loop {
            let (mut watch, since) = self.begin(&key, scope).await?;
            // In the first pass of this loop, the key is read if the watch began only after the entry's key was created, because
            // then the watch may have missed a change of the entry. For a shared waiter, the key is also read if the watch has
            // reported a change since the key was created: that may have been a put which downgraded the entry to shared, so that
            // the entry no longer blocks the waiter. Otherwise nothing has to be read.
            let mut known = created;
            if must_look || since >= created || scope == Scope::Key && watch.changed() > created {
                match self.look(entry, seq, waiter).await? {
                    Some(revision) => known = revision,
                    None => return Ok(()),
                }
            }
            if let Ok(Some(())) = timeout(recheck, watch.changed_after(known)).await {
                return Ok(());
            }
            // The watch broke, or it reported nothing for as long as `recheck`, and a message may have been lost. So the key is
            // read in the next pass of this loop.
            must_look = true;
        }
    }

    async fn changed(&self, queue: &QueueKey, listing: u64, recheck: Duration) -> Result<()> {
        let keys = self.txn_kv.keys(queue);
        let moved = async {
            let (mut watch, since) = loop {
                let watch = self.watches.watch(keys.prefix(), Scope::Prefix).await;
                let mut watch = watch.ok_or_else(closing)?;
                match self.since(&mut watch, keys.prefix(), Scope::Prefix).await? {
                    Some(since) => break (watch, since),
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            // If the listing was read after the watch began, the watch reports every change since that read: wait for a change. If
            // the listing was read before the watch began, the watch may have missed a change in between. In that case this call
            // returns at once, and its caller reads the queue again, while the watch goes on.
            if let Some(store) = self.reads.at(queue, listing)
                && store >= since
                && watch.changed_after(store).await.is_none()
            {
                // The watch broke, and the caller reads the queue again. Without this pause, observers would read their queues
                // without a break if the stream broke again and again.
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        timeout(recheck, moved).await.unwrap_or(Ok(()))
    }
}

impl Etcd {
    /// Subscribes to a key, perhaps by sharing an older watch. Returns the subscription, and the revision from which on it
    /// reports all changes.
    async fn begin(&self, key: &str, scope: Scope) -> Result<(Watch, i64)> {
        let begun = async {
            loop {
                let mut watch = self.watches.watch(key, scope).await.ok_or_else(closing)?;
                // If the watch broke before the server confirmed it, another one is begun. No pause is needed here: the task that
                // owns the stream makes a pause before it opens the next stream.
                if let Some(since) = self.since(&mut watch, key, scope).await? {
                    return Ok((watch, since));
                }
            }
        };
        // The limit is twice the time that a call may take, because a connection and a stream may have to be made first.
        in_time(2 * self.connections.patience, begun).await
    }

    /// The revision from which on the watch reports all changes; `None`: the watch broke.
    async fn since(&self, watch: &mut Watch, key: &str, scope: Scope) -> Result<Option<i64>> {
        match watch.since().await {
            // A `grpc-proxy` that already has a watch on the same key answers with revision 0. The watch reports all changes from
            // now on, so the store's current revision is read and noted.
            Some(0) => {
                let count = GetOptions::new().with_count_only();
                let now = self.txn_kv.store.get("watch", key, count).await?;
                let now = revision_in(now.header());
                self.watches.note(key, scope, now);
                Ok(Some(now))
            }
            since => Ok(since),
        }
    }

    /// Reads the entry. If it still blocks the waiter, returns the revision of the store at which it was read. `None`: the entry
    /// is gone, or does not block the waiter.
    async fn look(&self, entry: &EntryRef, seq: u64, waiter: Mode) -> Result<Option<i64>> {
        let mut options = GetOptions::new();
        if waiter == Mode::Exclusive {
            options = options.with_keys_only();
        }
        let key = self.txn_kv.key(entry);
        let found =
            in_time(self.connections.patience, self.txn_kv.store.get("watch", &key, options))
                .await?;
        let kv = found.kvs().first().filter(|kv| seq_of(kv) == seq);
        let blocker =
            kv.map(|kv| blocker_of(kv, &self.txn_kv.keys(&entry.queue), waiter)).transpose()?;
        Ok(blocker.flatten().map(|_| revision_in(found.header())))
    }
}

fn closing() -> Error {
    Error::new(ErrorKind::Unavailable, "watch", "the backend is closing")
}
