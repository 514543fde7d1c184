//! The calls about values, over the simulated network.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Call, Network};
use crate::backend::{Cursor, Data, Page, Values, Write};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Values for Network {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let write = write.clone();
        self.call(Call::Other, move |world| {
            let write = write.clone();
            async move { world.write(&write).await }
        })
        .await
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let (queue, names) = (queue.clone(), names.to_vec());
        self.call(Call::Other, move |world| {
            let (queue, names) = (queue.clone(), names.clone());
            async move { world.contents().records(&queue, &names).await }
        })
        .await
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let from = from.cloned();
        self.call(Call::Other, move |world| {
            let from = from.clone();
            async move { world.contents().names(kind, from.as_ref()).await }
        })
        .await
    }
}
