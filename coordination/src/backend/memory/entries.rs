//! Entries: each call is carried out immediately, on the caller's thread.

use async_trait::async_trait;

use super::Memory;
use crate::backend::{Cursor, Entries, EntryRef, Listing, NewEntry, Page, Position};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Entries for Memory {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        self.reach("enter")?.enter(entry)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        Ok(self.reach("update")?.update(entry, seq))
    }

    async fn leave(&self, entry: &EntryRef, _seq: Option<u64>) -> Result<()> {
        self.reach("leave")?.leave(entry);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        Ok(self.reach("position")?.position(entry, seq))
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        Ok(self.reach("read")?.read(queue))
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        Ok(self.reach("queues")?.queues(kind, from))
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        Some(self.reach("enter").ok()?.enter(entry))
    }

    fn leave_now(&self, entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        self.reach("leave").ok()?.leave(entry);
        Some(Ok(()))
    }
}
