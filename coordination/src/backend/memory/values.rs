//! Values: one beside the entries of a queue.

use async_trait::async_trait;

use super::Memory;
use crate::backend::{Cursor, Page, Values, Write};
use crate::error::Result;

#[async_trait]
impl Values for Memory {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        Ok(self.store.write(write))
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        Ok(self.store.names(kind, from))
    }
}
