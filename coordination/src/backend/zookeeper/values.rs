//! Queues' values: a node each, owned by no session, written by compare-and-set.
//!
//! The version is the transaction that wrote the node last, which rises for ever, over removals too. ZooKeeper itself
//! compares a node's count of changes, which starts anew when the node does. So every removal changes the node above
//! the values of a kind, and every write is made on condition that this one is still as it was read.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::{
    CreateMode, Error as ZooKeeperError, MultiWriteError, MultiWriteResult, Stat,
};

use super::Zookeeper;
use super::client::{Connection, Found};
use super::entries::fresh_children;
use super::entry::number;
use super::error::from_zookeeper;
use super::seen::Seen;
use crate::backend::server::names;
use crate::backend::server::stored::{StoredValue, check_name};
use crate::backend::{Value, Values, Write};
use crate::error::{Error, ErrorKind, Result};

/// How often a write looks again when something else has come in between.
const LOOKS: usize = 5;

/// The value that a node has.
pub(super) fn value_of(data: &[u8], stat: &Stat) -> Result<Value> {
    let stored = StoredValue::read(data)?;
    Ok(Value { version: number(stat.mzxid), data: stored.data.into() })
}

#[async_trait]
impl Values for Zookeeper {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let write =
            |connection: Arc<Connection>| async move { self.write_value(&connection, write).await };
        self.sessions.outside("write", write).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        let list = |connection: Arc<Connection>| async move {
            self.names_of_values(&connection, kind).await
        };
        self.sessions.outside("list", list).await
    }
}

impl Zookeeper {
    async fn write_value(&self, connection: &Connection, write: &Write) -> Result<Option<u64>> {
        let mut seen = self.seen.take(&write.queue, write.expected);
        for _ in 0..LOOKS {
            let known = match seen.take() {
                Some(seen) => seen,
                None => match self.look(connection, write).await? {
                    Look::Write(seen) => seen,
                    Look::Answer(answer) => return Ok(answer),
                    Look::Again => continue,
                },
            };
            match self.commit(connection, write, known).await? {
                Ok(Some(version)) => return Ok(Some(version)),
                Ok(None) => return Ok(write.expected),
                // Nobody has been in any queue of this kind.
                Err(ZooKeeperError::NoNode) if write.if_empty && !known.is_there => {
                    let queue = self.tree.queue(&write.queue);
                    self.tree.make_parents(connection, "write", &queue).await?;
                }
                Err(
                    ZooKeeperError::BadVersion
                    | ZooKeeperError::NoNode
                    | ZooKeeperError::NodeExists
                    | ZooKeeperError::NotEmpty,
                ) => {}
                Err(error) => return Err(from_zookeeper("write", &error)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "write", "others write all the time"))
    }

    /// Reads what a write is to go by.
    async fn look(&self, connection: &Connection, write: &Write) -> Result<Look> {
        let queue = self.tree.queue(&write.queue);
        let values = self.tree.values(write.queue.kind());
        let paths = [values, self.tree.value(&write.queue)];
        let children = write.if_empty.then_some(queue.as_str());
        let (children, found) = connection.read("write", children, &paths).await?;
        let mut found = found.into_iter();
        let (above, value) = (found.next().flatten(), found.next().flatten());
        if let Some(Found { data, stat }) = &value {
            check_name(&write.queue, data)?;
            if StoredValue::read(data)?.id == write.id {
                return Ok(Look::Answer(Some(number(stat.mzxid))));
            }
        }
        let version = value.as_ref().map(|found| number(found.stat.mzxid));
        let is_empty = children.as_ref().is_none_or(Vec::is_empty);
        if version != write.expected || write.if_empty && !is_empty {
            return Ok(Look::Answer(None));
        }
        match Seen::new(above.as_ref(), value.as_ref(), children.is_some()) {
            Some(seen) => Ok(Look::Write(seen)),
            None => {
                self.tree.make_parents(connection, "write", &paths[1]).await?;
                Ok(Look::Again)
            }
        }
    }

    /// Writes what was asked for, if everything is still as it was seen; answers the new version, if there is one.
    async fn commit(
        &self,
        connection: &Connection,
        write: &Write,
        seen: Seen,
    ) -> Result<Result<Option<u64>, ZooKeeperError>> {
        let (path, values) = (self.tree.value(&write.queue), self.tree.values(write.queue.kind()));
        let queue = self.tree.queue(&write.queue);
        let data = write.data.as_ref();
        let data = data.map(|data| StoredValue::new(&write.queue, write.id, data).to_bytes());
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
                    // A node can be made only if there is none, and removed only if it has no children.
                    if !seen.is_there {
                        let options = CreateMode::Persistent.with_acls(acls);
                        writer.add_create(&queue, &[], &options)?;
                    }
                    writer.add_delete(&queue, None)?;
                }
                match (&data, before) {
                    (Some(data), Some(before)) => writer.add_set_data(&path, data, Some(before))?,
                    (Some(data), None) => {
                        let options = CreateMode::Persistent.with_acls(acls);
                        writer.add_create(&path, &[], &options)?;
                        // Only this answers the transaction's number.
                        writer.add_set_data(&path, data, Some(0))?;
                    }
                    (None, Some(before)) => writer.add_delete(&path, Some(before))?,
                    (None, None) => {}
                }
                match writer.commit().await {
                    Ok(results) => Ok(version_in(results.last())),
                    Err(
                        MultiWriteError::OperationFailed { source, .. }
                        | MultiWriteError::RequestFailed { source },
                    ) => Err(source),
                }
            })
            .await
    }

    /// The names of the queues of this kind that have a value, in order.
    async fn names_of_values(
        &self,
        connection: &Connection,
        kind: &'static str,
    ) -> Result<Vec<String>> {
        let values = self.tree.values(kind);
        let queues = fresh_children(connection, "list", &values).await?;
        let values = &values;
        let read = |batch: Vec<String>| async move {
            let paths: Vec<_> = batch.iter().map(|queue| format!("{values}/{queue}")).collect();
            let (_, found) = connection.read("list", None, &paths).await?;
            Ok(found.into_iter().flatten().map(|found| found.data).collect())
        };
        names::of_values(queues, read).await
    }
}

/// What a look at a value comes to.
enum Look {
    /// Write, going by this.
    Write(Seen),
    /// It was done before, or is not to be done.
    Answer(Option<u64>),
    /// Something was missing, and is there now.
    Again,
}

/// The version of what the last of several changes wrote.
fn version_in(result: Option<&MultiWriteResult>) -> Option<u64> {
    match result? {
        MultiWriteResult::SetData { stat } => Some(number(stat.mzxid)),
        _ => None,
    }
}
