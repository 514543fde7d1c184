//! Values of queues. Each value is a node, which belongs to no session and is written by compare-and-set.
//!
//! A value's version is the number of the transaction that has last written its node. These numbers rise for ever, also after
//! removals. But ZooKeeper itself can compare only a node's own `version`, which counts the node's changes, and starts at zero
//! again when the node is removed and made again. So every removal of a value also changes the node above the values of its kind,
//! and every write has the condition that this upper node was not changed since it was read.
//!
//! If a write that creates a value got no answer, its first request may have created the value, and another client may have removed
//! it since. If the write were sent again after such a removal, it would take effect twice. So such a write is sent again only if
//! no value of this kind was removed since the write was first sent.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error as ZooKeeperError, MultiWriteResult, Stat};

use super::Zookeeper;
use super::client::{Connection, Found};
use super::entry::number;
use super::error::from_zookeeper;
use super::open_sessions::no_loss;
use super::reads::Seen;
use crate::backend::server::names;
use crate::backend::server::stored::{StoredValue, check_name, data_of};
use crate::backend::{Beside, Cursor, Data, Left, Page, Value, Values, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How often a write is tried at most, if other clients change something between the read and the write.
const LOOKS: usize = 5;

pub(super) fn value_of(data: &[u8], stat: &Stat) -> Result<Value> {
    Ok(StoredValue::read(data)?.into_value(number(stat.mzxid)))
}

#[async_trait]
impl Values for Zookeeper {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let connection = self.sessions.newest("write")?;
        let answer = self.write_value(&connection, write).await.map_err(no_loss)?;
        self.pending_creates.forget(write);
        Ok(answer)
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let connection = self.sessions.newest("read")?;
        let paths: Vec<_> = names.iter().map(|name| self.tree.record(queue, name)).collect();
        // `true`: a `sync` is sent first. The caller may have read the value in another session, from a server that is ahead of
        // this session's server.
        let (_, found) = connection.read("read", true, None, &paths).await.map_err(no_loss)?;
        let data = |found: Option<Found>| found.map(|found| data_of(found.data));
        Ok(found.into_iter().map(data).collect())
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let connection = self.sessions.newest("list")?;
        self.names_of_values(&connection, kind, from).await.map_err(no_loss)
    }
}

impl Zookeeper {
    async fn write_value(&self, connection: &Connection, write: &Write) -> Result<Option<u64>> {
        // A state of the value that was read earlier may be used for one write only. So it is taken out of the cache.
        let seen = self.seen.update(write.queue.clone(), Option::take);
        let mut seen = seen.filter(|seen| seen.version() == write.expected);
        let pending_creates = self.pending_creates.get(write);
        let mut gone = HashSet::new();
        for _ in 0..LOOKS {
            let known = match seen.take() {
                Some(seen) => seen,
                None => match self.look(connection, write).await? {
                    Ok(seen) => seen,
                    Err(answer) => return Ok(answer),
                },
            };
            if pending_creates.is_some_and(|removals| removals != known.removals) {
                // A value of this kind was removed since this write was first sent. The removed value may be the one that the first
                // request of this write has created. So it is not known whether this write has taken effect already.
                return Ok(None);
            }
            match self.commit(connection, write, known, &gone).await? {
                Ok(version) => return Ok(version.or(write.expected)),
                Err(ZooKeeperError::NoNode) => {
                    // A node above one of the nodes to be written is missing. Perhaps nobody has written a value of this kind yet,
                    // or nobody has entered a queue of this kind yet.
                    let paths = [self.tree.value(&write.queue), self.tree.queue(&write.queue)];
                    let paths = paths.into_iter().take(1 + usize::from(write.if_empty));
                    let record = |beside: &Beside| self.tree.record(&write.queue, &beside.name);
                    for path in paths.chain(write.beside.first().map(record)) {
                        self.tree.make_parents(connection, "write", &path).await?;
                    }
                    gone = self.gone(connection, write).await?;
                }
                Err(
                    ZooKeeperError::BadVersion
                    | ZooKeeperError::NodeExists
                    | ZooKeeperError::NotEmpty,
                ) => {}
                Err(error) => return Err(from_zookeeper("write", &error)),
            }
            if pending_creates.is_none() {
                self.pending_creates.forget(write);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "write", "others write all the time"))
    }

    /// Reads the state on which the write is made conditional. If the write must not be made, returns as the inner error what
    /// [`write_value`](Self::write_value) has to return: the version, if an earlier call of this write has written the value;
    /// `None`, if the queue is not as the write expects.
    async fn look(
        &self,
        connection: &Connection,
        write: &Write,
    ) -> Result<Result<Seen, Option<u64>>> {
        let queue = self.tree.queue(&write.queue);
        let paths = [self.tree.values(write.queue.kind()), self.tree.value(&write.queue)];
        let children = write.if_empty.then_some(queue.as_str());
        let (children, found) = connection.read("write", false, children, &paths).await?;
        let mut found = found.into_iter();
        let (above, value) = (found.next().flatten(), found.next().flatten());
        let seen = Seen::new(above.as_ref(), value.as_ref(), children.is_some());
        if let Some(Found { data, .. }) = &value {
            check_name(&write.queue, data)?;
            if StoredValue::read(data)?.id == write.id {
                return Ok(Err(seen.version()));
            }
        }
        let is_empty = children.is_none_or(|children| children.is_empty());
        let is_expected = seen.version() == write.expected && (is_empty || !write.if_empty);
        Ok(if is_expected { Ok(seen) } else { Err(None) })
    }

    /// The names of the records that this write changes and that do not exist, though they should. An operator may have removed
    /// them.
    async fn gone<'w>(
        &self,
        connection: &Connection,
        write: &'w Write,
    ) -> Result<HashSet<&'w str>> {
        let old = write.beside.iter().filter(|beside| !beside.is_new);
        let names: Vec<_> = old.map(|beside| &*beside.name).collect();
        if names.is_empty() {
            return Ok(HashSet::new());
        }
        let paths: Vec<_> = names.iter().map(|name| self.tree.record(&write.queue, name)).collect();
        let (_, found) = connection.read("write", true, None, &paths).await?;
        let gone = names.into_iter().zip(found).filter(|(_, found)| found.is_none());
        Ok(gone.map(|(name, _)| name).collect())
    }

    /// Makes the write on condition that everything still is as in `seen`. Returns the new version; `None` for a removal.
    async fn commit(
        &self,
        connection: &Connection,
        write: &Write,
        seen: Seen,
        gone: &HashSet<&str>,
    ) -> Result<Result<Option<u64>, ZooKeeperError>> {
        let (path, values) = (self.tree.value(&write.queue), self.tree.values(write.queue.kind()));
        let queue = self.tree.queue(&write.queue);
        let data = write.data.as_ref();
        let data = data.map(|data| StoredValue::by(write, data).to_bytes());
        let data = data.transpose()?;
        let (acls, before) = (self.tree.acls(), seen.value.map(|(_, changes)| changes));
        connection
            .raw_call("write", |client| async move {
                let mut writer = client.new_multi_writer();
                match (&data, before) {
                    (None, Some(_)) => writer.add_set_data(&values, &[], Some(seen.removals))?,
                    _ => writer.add_check_version(&values, seen.removals)?,
                }
                if write.if_empty {
                    // These operations fail unless the queue is empty. The `create` fails if the queue has got a node since the
                    // read; the `delete` fails if the node has children.
                    if !seen.is_there {
                        let options = CreateMode::Persistent.with_acls(acls);
                        writer.add_create(&queue, &[], &options)?;
                    }
                    writer.add_delete(&queue, None)?;
                }
                for Beside { name, data, is_new } in &write.beside {
                    let path = self.tree.record(&write.queue, name);
                    // If the value has the expected version, the records are as expected too, unless an operator has removed some
                    // of them.
                    let is_gone = gone.contains(&**name);
                    match data {
                        Some(data) if *is_new || is_gone => {
                            let options = CreateMode::Persistent.with_acls(acls);
                            writer.add_create(&path, data.as_bytes(), &options)?;
                        }
                        Some(data) => writer.add_set_data(&path, data.as_bytes(), None)?,
                        None if is_gone => {}
                        None => writer.add_delete(&path, None)?,
                    }
                }
                match (&data, before) {
                    (Some(data), Some(before)) => writer.add_set_data(&path, data, Some(before))?,
                    (Some(data), None) => {
                        self.pending_creates.update(write, |known| *known = Some(seen.removals));
                        let options = CreateMode::Persistent.with_acls(acls);
                        writer.add_create(&path, &[], &options)?;
                        // Only the answer to a `setData` has the number of the transaction, which is the value's version. So the
                        // node is made empty, and then written.
                        writer.add_set_data(&path, data, Some(0))?;
                    }
                    (None, Some(before)) => writer.add_delete(&path, Some(before))?,
                    (None, None) => {}
                }
                Ok(version_in(writer.commit().await?.last()))
            })
            .await
    }

    /// One page of the names of the queues of this kind that have a value.
    async fn names_of_values(
        &self,
        connection: &Connection,
        kind: &'static str,
        from: Option<&Cursor>,
    ) -> Result<Page> {
        let values = self.tree.values(kind);
        let left = Left::from(from, connection.children("list", &values)).await?;
        let (queues, next) = left.page();
        let values = &values;
        let read = |batch: Vec<String>| async move {
            let paths: Vec<_> = batch.iter().map(|queue| format!("{values}/{queue}")).collect();
            let (_, found) = connection.read("list", false, None, &paths).await?;
            Ok(found.into_iter().flatten().map(|found| found.data).collect())
        };
        let names = names::of_values(queues.iter().cloned(), read).await?;
        Ok(Page { names, next })
    }
}

/// The version of the value, from the answer to the last operation of a transaction; `None`: this operation was a removal or a
/// check.
fn version_in(result: Option<&MultiWriteResult>) -> Option<u64> {
    match result? {
        MultiWriteResult::SetData { stat } => Some(number(stat.mzxid)),
        _ => None,
    }
}
