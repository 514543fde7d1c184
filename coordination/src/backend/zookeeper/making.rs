//! How an entry's node is made: only once, even if the answers to calls are lost.

use std::sync::Arc;

use zookeeper_client::{
    Client, CreateMode, Error as ZooKeeperError, MultiWriteError, MultiWriteResult,
};

use super::Zookeeper;
use super::client::Connection;
use super::config::Style;
use super::entry::{Known, Made, number};
use super::error::from_zookeeper;
use super::siblings::Names;
use super::tree::make_all;
use super::write_fence::revoked;
use crate::backend::{EntryId, EntryRef, NewEntry};
use crate::error::Result;
use crate::key::QueueKey;

// The operations of the request that makes an entry's node, by their indexes in the request. The first one checks the version of
// the write fence.
const WRITE_FENCE: usize = 0;
const ENTRY: usize = 1;
/// The write to the member's node. The request has this write because the entry needs the number of the transaction: the answer to
/// a `setData` has that number, the answer to a `create` has not.
const MEMBER: usize = 2;
/// How often a call tries again after other calls have changed what it depends on: the queue's node or the write fence.
const MENDS: usize = 2;

impl Zookeeper {
    /// Makes an entry's node, and lists the names of the queue's nodes.
    pub(super) async fn make(
        &self,
        connection: &Arc<Connection>,
        entry: &NewEntry,
        data: &Arc<[u8]>,
    ) -> Result<(Made, Result<Names, ZooKeeperError>)> {
        let mut mends = 0..MENDS;
        loop {
            let version = connection.write_fence.version();
            let (made, children) = self.try_to_make(connection, entry, data, version).await?;
            let (index, error) = match made {
                Ok(made) => return Ok((made, children)),
                Err(MultiWriteError::RequestFailed { source }) => (usize::MAX, source),
                Err(MultiWriteError::OperationFailed { index, source }) => (index, source),
            };
            match (index, &error) {
                (WRITE_FENCE | MEMBER, ZooKeeperError::NoNode) => return Err(revoked("enter")),
                // This process took the queue's node to exist, but the server has removed it, because it was empty for a while.
                (ENTRY, ZooKeeperError::NoNode) => self.tree.lost(&entry.entry_ref.queue),
                // A call for another entry has ended this version of the write fence since this call read the version. After `end`,
                // this process knows a newer version.
                (WRITE_FENCE, ZooKeeperError::BadVersion) => {
                    connection.write_fence.end(connection, "enter", version).await?;
                }
                _ => mends = 0..0,
            }
            if mends.next().is_none() {
                return Err(from_zookeeper("enter", &error));
            }
        }
    }

    /// Makes the entry's node on condition of this version of the write fence. Also makes the nodes above it that may be missing,
    /// and lists the names of the queue's nodes. All requests are sent before the first answer has come. But if this session has
    /// another listing of the queue in flight, no listing is sent now: when that listing is answered, one further listing is sent
    /// for all callers that have come in between.
    ///
    /// If the caller drops the future, the answer is noted all the same when it comes. So a repeated `enter` need not look for the
    /// node, which on a slow network would take as long as the call that was given up.
    async fn try_to_make(
        &self,
        connection: &Arc<Connection>,
        entry: &NewEntry,
        data: &Arc<[u8]>,
        version: i32,
    ) -> Result<(Result<Made, MultiWriteError>, Result<Names, ZooKeeperError>)> {
        let queue = self.tree.queue(&entry.entry_ref.queue);
        let path = format!("{queue}/{}", self.style.prefix(&entry.entry_ref.id, entry.mode));
        let options = CreateMode::EphemeralSequential.with_acls(self.tree.acls());
        let missing = self.tree.missing(&entry.entry_ref.queue);
        let (own, id) = (Arc::clone(&self.own), entry.entry_ref.id.clone());
        let (session, data) = (entry.session.to_string(), Arc::clone(data));
        let (member, write_fence) =
            (connection.member.clone(), connection.write_fence.path.clone());
        let (style, listings) =
            (self.style, self.siblings.of(connection.owner, &entry.entry_ref.queue));
        let making = |client: Arc<Client>| async move {
            own.change(&id, |own| own.known.asked = Some(version));
            let above = make_all(&client, &missing);
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&write_fence, version)?;
            writer.add_create(&path, &data, &options)?;
            writer.add_set_data(&member, session.as_bytes(), None)?;
            let sent = writer.commit();
            let (asked, list) = (listings.asked(), || client.list_children(&queue));
            // If no listing is in flight, this sends one now, right after the request that makes the node.
            let first = listings.begin().map(|turn| turn.answered(list()));
            let make = async { made_by(style, &sent.await?) };
            let list = async {
                match first {
                    Some(first) => first.await,
                    None => listings.after(asked, list).await,
                }
            };
            let (failed, mut made, listed) = tokio::join!(above, make, list);
            if let Err(MultiWriteError::OperationFailed { index: ENTRY, source }) = &mut made
                && let Some(failed) = failed
            {
                *source = failed;
            }
            if let Ok(made) = &made {
                own.change(&id, |own| own.known.made = Some(made.clone()));
            }
            let refused =
                MultiWriteError::OperationFailed { index: ENTRY, source: ZooKeeperError::NoAuth };
            // `NoAuth` is returned as the error of the whole call, because `detached_call` looks for it there, and then tries a
            // newer password.
            if made.as_ref().is_err_and(|error| *error == refused) {
                return Err(ZooKeeperError::NoAuth);
            }
            Ok((made, listed))
        };
        connection.detached_call("enter", making).await
    }

    /// The node that an earlier call has made for this entry; `None`: there is none that this session owns.
    pub(super) async fn made_before(
        &self,
        connection: &Connection,
        entry: &NewEntry,
        known: Known,
    ) -> Result<Option<Made>> {
        let version = match known {
            Known { made: Some(made), .. } => return Ok(Some(made)),
            Known { asked: None, .. } => return Ok(None),
            Known { asked: Some(version), .. } => version,
        };
        let Some(name) = self.listed(connection, "enter", &entry.entry_ref, version).await? else {
            return Ok(None);
        };
        let number_in_name = self.style.read(&name).map(|node| node.number).unwrap_or_default();
        let path = self.tree.entry(&entry.entry_ref.queue, &name);
        let found = connection.read_one("enter", path).await?;
        // `R3`: a node that another session owns must never be taken for our own.
        let own = found.filter(|found| found.stat.ephemeral_owner == connection.owner);
        Ok(own.map(|found| {
            let (seq, updates) = (number(found.stat.czxid), found.stat.version);
            let made = Made { name, number: number_in_name, seq, updates };
            self.know(&entry.entry_ref.id, made.clone());
            made
        }))
    }

    pub(super) fn know(&self, id: &EntryId, made: Made) {
        self.own.change(id, |own| own.known.made = Some(made));
    }

    /// Looks for the node of an entry of ours. An earlier call has tried to make it, on condition of `version` of the write fence
    /// or of an earlier version. Returns the node's name.
    ///
    /// First ends this version of the write fence. If the node is not in the list of names after that, it will never be made,
    /// because requests on condition of this version or an earlier one have no effect any more.
    pub(super) async fn listed(
        &self,
        connection: &Connection,
        operation: &'static str,
        entry: &EntryRef,
        version: i32,
    ) -> Result<Option<String>> {
        connection.write_fence.end(connection, operation, version).await?;
        let name = self.style.name(&entry.id);
        // The server that answers the listing has already carried out the write that ended the version. So it has also carried out
        // every request that took effect before that write, and its list has the node if there is one.
        let children = self.siblings_of(connection, operation, &entry.queue).await?;
        let is_it = |child: &&String| child.starts_with(&name) && self.style.read(child).is_some();
        Ok(children.iter().find(is_it).cloned())
    }

    /// The names of a queue's nodes, with the effect of all calls that this session has made so far; empty if the queue has no
    /// node.
    pub(super) async fn siblings_of(
        &self,
        connection: &Connection,
        operation: &'static str,
        queue: &QueueKey,
    ) -> Result<Names> {
        let (listings, path) = (self.siblings.of(connection.owner, queue), self.tree.queue(queue));
        let asked = listings.asked();
        let listing = |client: Arc<Client>| async move {
            listings.after(asked, || client.list_children(&path)).await
        };
        connection.call(operation, listing).await
    }
}

/// The node of an entry, from the answer to the request that has made it.
fn made_by(style: Style, results: &[MultiWriteResult]) -> Result<Made, MultiWriteError> {
    let made = match results {
        [_, MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] => {
            let name = path.rsplit_once('/').map_or("", |(_, name)| name);
            style.read(name).map(|node| (node, number(stat.mzxid)))
        }
        _ => None,
    };
    let Some((node, seq)) = made else {
        let message = "the server's answer is to another question".to_owned();
        return Err(ZooKeeperError::UnexpectedError(message).into());
    };
    Ok(Made { name: node.name.to_owned(), number: node.number, seq, updates: 0 })
}
