//! Values: each queue has at most one value, in addition to its entries.

use std::sync::Arc;

use async_trait::async_trait;

use super::Memory;
use crate::backend::{Cursor, Data, Page, Values, Write};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Values for Memory {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        Ok(self.reach("write")?.write(write))
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        Ok(self.reach("records")?.records(queue, names))
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        Ok(self.reach("names")?.names(kind, from))
    }
}
