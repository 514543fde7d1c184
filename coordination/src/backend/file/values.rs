//! Values, which are kept in the queue's file.

use std::sync::Arc;

use async_trait::async_trait;

use super::file_store::{FileStore, names_where, when_free};
use crate::backend::{Cursor, Data, Page, Values, Write};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Values for FileStore {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let new = write.clone();
        let step = self.change("write", &write.queue, move |store, queue| store.write(queue, &new));
        let answer = step.await?;
        self.store().unanswered.forget(write);
        Ok(answer)
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let store = self.store();
        when_free(|| store.records(queue, names)).await
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let store = self.store();
        names_where(&store, kind, from, |key| store.has_value(key)).await
    }
}
