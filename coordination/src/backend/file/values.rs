//! Values: kept in the queue's file.

use async_trait::async_trait;

use super::{FileStore, names_where};
use crate::backend::{Values, Write};
use crate::error::Result;

#[async_trait]
impl Values for FileStore {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let (id, write) = (write.id, write.clone());
        let answer = self.change("write", move |store| store.write(&write)).await?;
        self.store().answered(id);
        Ok(answer)
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        let store = self.store();
        names_where(&store, kind, |key| store.has_value(key)).await
    }
}
