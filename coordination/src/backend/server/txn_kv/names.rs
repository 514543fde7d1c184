//! Listing the names of queues that have a value, or an entry: see [`names`](crate::backend::server::names).

use std::collections::BTreeMap;

use super::TxnKv;
use super::keys::queue_of;
use super::txn::Transact;
use crate::backend::server::names::{self, Extent};
use crate::backend::server::stored::queue_name;
use crate::backend::{Cursor, Page};
use crate::error::Result;
use crate::key;

impl<T: Transact> TxnKv<T> {
    /// See [`Values::names`](crate::backend::Values::names).
    pub(crate) async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let prefix = &format!("{}/{kind}/", self.namespace);
        let is_value = |name: &str| name == T::VALUE;
        let queue = |key: &String| queue_of(key, prefix, is_value).map(str::to_owned);
        let (listed, next) = self.store.list(prefix, from).await?;
        let queues = listed.iter().filter_map(queue);
        let read = |batch: Vec<String>| async move {
            let keys = batch.iter().map(|queue| format!("{prefix}{queue}/{}", T::VALUE));
            let found = self.store.read_each(keys.collect()).await?;
            let values = found.into_iter().filter(|(key, _)| queue(key).is_some());
            Ok(values.map(|(_, text)| text).collect())
        };
        Ok(Page { names: names::of_values(queues, read).await?, next })
    }

    /// See [`Entries::queues`](crate::backend::Entries::queues).
    pub(crate) async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let prefix = &format!("{}/{kind}/", self.namespace);
        let of_entry = |key: &String| Some(queue_of(key, prefix, T::IS_ENTRY)?.to_owned());
        let (listed, next) = self.store.list(prefix, from).await?;
        // For each queue, the key of one of its entries. If the key has only a hash of the queue's name, the entry's text is read,
        // which has the name.
        let one: BTreeMap<_, _> =
            listed.iter().filter_map(|key| Some((of_entry(key)?, key))).collect();
        let one = &one;
        let read = |batch: Vec<String>, extent| async move {
            let keys = batch.iter().filter_map(|queue| match extent {
                Extent::One => one.get(queue).map(|key| (*key).clone()),
                // The entry whose key was listed has left since, or another program wrote it, so its text did not have the name.
                // Now all entries of the queue are read, because one of them may have the name.
                Extent::All => Some(format!("{prefix}{queue}/")),
            });
            let found = self.store.read_each(keys.collect()).await?;
            let texts = found.into_iter().filter_map(|(key, text)| Some((of_entry(&key)?, text)));
            Ok(texts.collect())
        };
        let is_read = |queue: &&String| !T::ALL_COUNT || key::is_hashed(queue);
        let (read_for, plain): (Vec<_>, Vec<_>) = one.keys().partition(is_read);
        let mut names = names::of_entries(read_for.into_iter().cloned(), read).await?;
        names.extend(plain.into_iter().filter_map(|queue| queue_name(queue, b"")));
        Ok(Page { names, next })
    }
}
