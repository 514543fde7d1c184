//! Entries: each change under the short lock of the queue's file.

use async_trait::async_trait;

use super::{FileStore, names_where, when_free};
use crate::backend::{Entries, EntryRef, Listing, NewEntry, Position};
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for FileStore {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let entry = entry.clone();
        self.change("enter", move |store| store.enter(&entry)).await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let entry = entry.clone();
        self.change("update", move |store| store.update(&entry, seq)).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let store = self.store();
        when_free(|| store.leave(entry, seq)).await
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let store = self.store();
        // Others take an entry for dead when its session's file is gone (`S6`).
        if !store.sessions.is_in_place(entry.session)? {
            return Err(Error::lost("position", LossReason::Revoked));
        }
        when_free(|| store.position(entry, seq)).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let store = self.store();
        when_free(|| store.read(queue)).await
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        let store = self.store();
        names_where(&store, kind, |key| store.has_entry(key)).await
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        if self.config.durable {
            return None;
        }
        self.store().enter(entry)
    }

    fn leave_now(&self, entry: &EntryRef, seq: Option<u64>) -> Option<Result<()>> {
        self.store().leave(entry, seq)
    }
}
