//! Queues' values: see [`keyed`](crate::backend::server::keyed).

use async_trait::async_trait;

use super::Consul;
use super::client::Request;
use super::keys::{Keys, queue_of_value};
use super::kv::{Operation, Pair, names, read_together};
use crate::backend::server;
use crate::backend::server::stored::StoredValue;
use crate::backend::{Value, Values, Write};
use crate::error::Result;

/// The value that this key has.
pub(super) fn value_of(pair: &Pair) -> Result<Value> {
    let stored = StoredValue::read(&pair.value())?;
    Ok(Value { version: pair.modify_index, data: stored.data.into() })
}

#[async_trait]
impl Values for Consul {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.keyed.write(write, &self.keys(&write.queue).of_value()).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        let prefix = &format!("{}/{kind}/", self.namespace);
        let request = Request::get(format!("kv/{prefix}")).with("keys").with("consistent");
        let found = names("list", self.connections.send("list", request).await?)?;
        let queues = found.iter().filter_map(|key| queue_of_value(key, prefix));
        let read = |batch: Vec<String>| async move {
            let value = |queue| Keys::new(format!("{prefix}{queue}/")).value();
            let reads: Vec<_> = batch.iter().map(|queue| Operation::read(value(queue))).collect();
            let pairs = read_together(&self.connections, "list", &reads).await?;
            let values = pairs.iter().filter(|pair| queue_of_value(&pair.key, prefix).is_some());
            Ok(values.map(Pair::value).collect())
        };
        server::names::of_values(queues.map(str::to_owned), read).await
    }
}
