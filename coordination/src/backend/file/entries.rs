//! Entries. Each change is made under the queue's short lock, which is a `flock` of the queue's file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::file_store::{FileStore, names_where, when_free};
use super::held::Share;
use super::queue::file_name;
use crate::backend::{Cursor, Entries, EntryRef, Left, Listing, NewEntry, Page, Position};
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for FileStore {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let new = entry.clone();
        self.change("enter", &entry.entry_ref.queue, move |store, queue| store.enter(queue, &new))
            .await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let new = entry.clone();
        let queue = &entry.entry_ref.queue;
        self.change("update", queue, move |store, queue| store.update(queue, &new, seq)).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let (store, line) = (self.store(), self.line_if_durable(&entry.queue));
        let _turn = match &line {
            Some(line) => line.acquire().await.ok(),
            None => None,
        };
        when_free(|| store.leave(entry, seq)).await
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let store = self.store();
        // If the session's file is gone, other processes take the session to be over and remove its entries (`S6`). So the session
        // is lost.
        if !store.sessions.is_in_place(entry.session)? {
            return Err(Error::lost("position", LossReason::Revoked));
        }
        when_free(|| store.position(entry, seq)).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let store = self.store();
        when_free(|| store.read(queue)).await
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let store = self.store();
        names_where(&store, kind, from, |key| store.has_entry(key)).await
    }

    async fn prune(
        &self,
        unused: Duration,
        from: Option<&Cursor>,
        removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        let store = self.store();
        let left = Left::from(from, store.files(|name| name.contains('.'))).await?;
        let (files, next) = left.page();
        let mut floor = when_free(|| store.floor.lock(&store.queues).transpose()).await?;
        let mut share = Share::begin();
        for file in files {
            let is_removed = store.prune(file, unused, &mut floor)?;
            removed.fetch_add(u64::from(is_removed), Ordering::Relaxed);
            share.give_way().await;
        }
        Ok(next)
    }

    async fn prune_queue(&self, queue: &QueueKey) -> Result<()> {
        let store = self.store();
        let mut floor = when_free(|| store.floor.lock(&store.queues).transpose()).await?;
        store.prune(&file_name(queue), Duration::ZERO, &mut floor).map(drop)
    }

    /// Always false: a caller of `enter` that gives up need not wait for an answer, and drops the call at once. If the change of
    /// the queue's file has not begun when the call is dropped, the change is never made. If the change has begun, it keeps the
    /// short lock until it is done. So it is done before the caller can remove the entry.
    fn was_sent(&self, _entry: &EntryRef) -> bool {
        false
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        if self.config.durable {
            return None;
        }
        let store = self.store();
        store.with_queue(&entry.entry_ref.queue, |queue| store.enter(queue, entry))
    }

    fn leave_now(&self, entry: &EntryRef, seq: Option<u64>) -> Option<Result<()>> {
        self.store().leave(entry, seq)
    }
}
