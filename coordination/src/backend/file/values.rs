//! Values: kept in the queue's file.

use async_trait::async_trait;

use super::{FileStore, names_where};
use crate::backend::{Cursor, Page, Values, Write};
use crate::error::Result;

#[async_trait]
impl Values for FileStore {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let new = write.clone();
        let step = self.change("write", &write.queue, move |store, queue| store.write(queue, &new));
        let answer = step.await?;
        self.store().answered(write.id);
        Ok(answer)
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let store = self.store();
        names_where(&store, kind, from, |key| store.has_value(key)).await
    }
}
