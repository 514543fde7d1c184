//! Queues' values: see [`txn_kv`](crate::backend::server::txn_kv).

use std::sync::Arc;

use async_trait::async_trait;

use super::Consul;
use super::kv::Pair;
use crate::backend::server::stored::StoredValue;
use crate::backend::{Cursor, Data, Page, Value, Values, Write};
use crate::error::Result;
use crate::key::QueueKey;

pub(super) fn value_of(pair: &Pair) -> Result<Value> {
    Ok(StoredValue::read(&pair.value())?.into_value(pair.modify_index))
}

#[async_trait]
impl Values for Consul {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.txn_kv.write(write).await
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        self.txn_kv.records(queue, names).await
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.txn_kv.names(kind, from).await
    }
}
