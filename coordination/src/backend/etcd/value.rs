//! Queues' values: a key each, owned by no session, written by compare-and-set.
//!
//! The version is the key's modification revision, which rises for ever, over removals too.

use std::sync::atomic::{AtomicUsize, Ordering};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};

use super::entry::{number, revision_of};
use super::keys::{Keys, queue_of_value};
use super::{Etcd, found, revision_in};
use crate::backend::stored::{StoredValue, check_name, name_in};
use crate::backend::{Value, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;

/// How many values are read in one transaction: etcd takes 128, and a value may be large.
const BATCH: usize = 32;

/// The value that this key has.
pub(super) fn value_of(kv: &KeyValue) -> Result<Value> {
    let stored = StoredValue::read(kv.value())?;
    Ok(Value { version: number(kv.mod_revision()), data: stored.data.into() })
}

impl Etcd {
    pub(super) async fn write_value(&self, write: &Write) -> Result<Option<u64>> {
        let transaction = transaction(write, &self.keys(&write.queue))?;
        let tries = AtomicUsize::new(0);
        let answer = self.connections.call("write", |client| {
            tries.fetch_add(1, Ordering::Relaxed);
            let transaction = transaction.clone();
            async move { client.kv_client().txn(transaction).await }
        });
        let answer = answer.await?;
        if answer.succeeded() {
            let written = number(revision_in(answer.header()));
            return Ok(if write.data.is_some() { Some(written) } else { write.expected });
        }
        if let Some(kv) = found(&answer, 0).first() {
            check_name(&write.queue, kv.value())?;
            if StoredValue::read(kv.value())?.id == write.id {
                return Ok(Some(number(kv.mod_revision())));
            }
        }
        if tries.into_inner() > 1 {
            // It was sent on two connections: the first may have done it, and another's write
            // followed. Whoever repeats this call has to know that it is in doubt.
            let message = "the connection broke, and the value was changed since";
            let error = Error::new(ErrorKind::Unavailable, "write", message);
            return Err(error.with_effect(Effect::Unknown));
        }
        Ok(None)
    }

    /// The names of the queues of this kind that have a value, in order.
    pub(super) async fn names_of_values(&self, kind: &str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get("list", &prefix, all).await?;
        let queues = answer.kvs().iter().filter_map(|kv| queue_of_value(kv.key(), &prefix));
        let (hashed, plain): (Vec<_>, Vec<_>) = queues.partition(|queue| key::is_hashed(queue));
        let mut names: Vec<_> = plain.into_iter().filter_map(key::unescape).collect();
        for batch in hashed.chunks(BATCH) {
            let value = |queue: &&str| Keys::new(format!("{prefix}{queue}/")).value();
            let reads: Vec<_> = batch.iter().map(|queue| TxnOp::get(value(queue), None)).collect();
            let answer = self.transact("list", Txn::new().and_then(reads)).await?;
            // One that was removed meanwhile has none.
            names.extend(
                (0..batch.len()).filter_map(|nth| name_in(found(&answer, nth).first()?.value())),
            );
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn transaction(write: &Write, keys: &Keys) -> Result<Txn> {
    let key = keys.value();
    let mut conditions = vec![match write.expected {
        Some(version) => {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, revision_of(version))
        }
        None => Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
    }];
    if write.if_empty {
        let entries = keys.entries();
        // Holds for every key of the range: so there is none.
        let none = Compare::create_revision(entries.from, CompareOp::Equal, 0);
        conditions.push(none.with_range(entries.to));
    }
    let change = match &write.data {
        Some(data) => TxnOp::put(
            key.as_str(),
            StoredValue::new(&write.queue, write.id, data).to_bytes()?,
            None,
        ),
        None => TxnOp::delete(key.as_str(), None),
    };
    Ok(Txn::new().when(conditions).and_then([change]).or_else([TxnOp::get(key, None)]))
}
