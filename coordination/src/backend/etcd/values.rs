//! Queues' values: see [`keyed`](crate::backend::server::keyed).

use async_trait::async_trait;
use etcd_client::{GetOptions, KeyValue, Txn, TxnOp};

use super::Etcd;
use super::entry::number;
use super::keys::{Keys, queue_of_value};
use super::txn::found;
use crate::backend::server::names;
use crate::backend::server::stored::StoredValue;
use crate::backend::{Value, Values, Write};
use crate::error::Result;

/// The value that this key has.
pub(super) fn value_of(kv: &KeyValue) -> Result<Value> {
    let stored = StoredValue::read(kv.value())?;
    Ok(Value { version: number(kv.mod_revision()), data: stored.data.into() })
}

#[async_trait]
impl Values for Etcd {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.keyed.write(write, &self.keys(&write.queue).of_value()).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        let prefix = &format!("{}/{kind}/", self.namespace);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get("list", prefix, all).await?;
        let queues = answer.kvs().iter().filter_map(|kv| queue_of_value(kv.key(), prefix));
        let read = |batch: Vec<String>| async move {
            let value = |queue| Keys::new(format!("{prefix}{queue}/")).value();
            let reads: Vec<_> = batch.iter().map(|queue| TxnOp::get(value(queue), None)).collect();
            let answer = self.keyed.store.make("list", Txn::new().and_then(reads)).await?;
            let values = (0..batch.len()).flat_map(|nth| found(&answer, nth));
            Ok(values.map(|kv| kv.value().to_vec()).collect())
        };
        names::of_values(queues.map(str::to_owned), read).await
    }
}
