//! Entries: how their nodes are made, found, read and removed.
//!
//! # The protocol
//!
//! Which entry blocks which, and what a holder does when its lease ends, is the same on all stores: see `backend/mod.rs`.
//!
//! A session has two ephemeral nodes, which are made together when it is opened:
//!
//! * the *member's node*, `<namespace>/member/<member id>`. As long as it exists, no other session can have this member id.
//!   Heartbeats and `enter` write to it, so its version rises all the time.
//! * the *session's node*, `<namespace>/session/<session id>`. Its version is the write fence. This node is written only to end a
//!   write fence. If the version of the member's node were the write fence, each heartbeat would end the fence and make every
//!   `enter` in flight fail. Therefore the session has this second node.
//!
//! `enter` is two requests that are sent together (`making.rs`). V is the version of the session's node that this process knows:
//!
//! ```text
//! multi  check   <session's node>  version = V            (1)
//!        create  <queue>/<entry id>__lock__  EPHEMERAL_SEQUENTIAL, data    (2)
//!        setData <member's node>                           (3)
//! getChildren2 <queue>                                     (4)
//! ```
//!
//! 1. The write fence. After a connection broke, a server may still carry out a request that was sent on it, even when the server
//!    has already answered later requests on the next connection. So if the answer to a `multi` was lost, the client first writes
//!    to the session's node, which raises the version, and then lists the names. A `multi` that came before this write has made the
//!    node, and the list has the node; a `multi` that comes after it fails as a whole. So to repeat an `enter`, the client writes,
//!    lists, and sends the `multi` again, with the new V, only if the list does not have the node.
//! 2. In a list, the node is found by the entry id in its name. (Ids are random, so no two entries ever have the same name.) The
//!    server appends a number to the name, which is the node's place in the queue. It has 32 bits and wraps, so two numbers are
//!    compared by their difference; and it begins anew only if the queue's node was removed, which had no children then. The node
//!    of a shared entry has `__rlock__` in its name. If an exclusive entry was downgraded to shared, its node keeps its name, and
//!    only the node's data say so. `EPHEMERAL`: the server deletes the node when its session ends.
//! 3. The entry's sequence number is the number of this transaction. The answer to a `create` does not have this number, but the
//!    answer to a `setData` has it. (If the node was found in a list, its `czxid` is this number.) If somebody has removed the
//!    member's node, our session counts as over, and this operation makes the whole `multi` fail. The client then closes its
//!    session at ZooKeeper, which ends the session's entries.
//! 4. The names of all nodes in the queue. The server carries out the requests of a connection in order, so our node is among them.
//!    Of the nodes before ours that block us, the newest is the blocker; to find it, a shared entry also reads the data of the
//!    nodes that were entered as exclusive. If there is no blocker, the lock is ours.
//!
//! `leave` is `delete <node>` with the node's full name, which no other node ever has; also for an entry of another client. If it
//! is not known whether the node was made, `leave` first ends the write fence by `setData <session's node>`, and then lists the
//! names. If the node is not among them, it will never be made. If the session's node does not exist, the session is over, and
//! `leave` fails with `Lost`.
//!
//! `position` lists the names once more. If our own name is not among them, our entry is gone. Otherwise the newest node before it
//! that blocks us is the blocker. The server's list may lag behind, but not behind our node: the client has seen that the node was
//! made, and connects to no server that is behind what it has seen. As the list has our node, it also has every node that was there
//! when ours was made. So the list may still have a blocker that has left since, but no blocker is missing from it.
//!
//! `update` is `multi setData <node> version = updates, setData <queue> <name>`. The first operation fails if the node was updated
//! more often than this process knows (`updates`): so an update that arrives after a later one has no effect. If it fails, the
//! node's version is read, and the update is tried once more with it. The second operation writes the name of the updated node into
//! the node of the queue. So a reader of the queue sees which entry was updated, and reads only that entry's node again
//! (`reads.rs`).

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::{Client, Error as ZooKeeperError};

use super::Zookeeper;
use super::client::{Connection, Found};
use super::entry::{Known, Made, entry_of, number};
use super::error::from_zookeeper;
use super::nodes::Node;
use super::open_sessions::no_loss;
use super::reads::{Age, Seen, Written};
use super::rights::lacking;
use super::values::value_of;
use crate::backend::server::names::{self, Extent};
use crate::backend::server::own_entries::Own;
use crate::backend::server::stored::{StoredEntry, check_name, mode_in};
use crate::backend::{
    Blocker, Cursor, Entries, EntryId, EntryRef, Left, Listing, Mode, NewEntry, Page, Position,
    SessionId,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{self, QueueKey};
use crate::session::Sight;

/// How many nodes that may block an entry are read in one request.
const NEWEST: usize = 8;
/// How many reads a listing makes at most, if the queue changes during each of them.
const READS: usize = 8;
/// In how many of these reads `read_standing` tries to get all entries as of one moment. After these reads, it returns the entries
/// that are in two lists of names, one read after the other.
const EXACT: usize = 2;
/// How many nodes of a queue are read in one request. A request may have a megabyte, and the path of one node may have 500 bytes or
/// more.
const BATCH: usize = 1024;
/// How many bytes the paths of all held entries may have in one answer. A server answers the requests of a session one after the
/// other, so a heartbeat waits behind this answer. (`jute.maxbuffer` limits requests to a server, and not its answers.)
const LONGEST_LIST: usize = 4 * 1024 * 1024;
/// How many bytes a path takes in an answer besides its own.
const AROUND_PATH: usize = 4;
/// How many queues one request lists, when the names of all queues with entries are looked for.
const QUEUES: usize = 32;

#[async_trait]
impl Entries for Zookeeper {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let connection = self.sessions.of("enter", entry.session)?;
        let (own, _) = self.own.begin(entry, Known::default);
        // An earlier call for this entry may have made the node, even if its answer was lost.
        if let Some(made) = self.made_before(&connection, entry, own.known).await? {
            if let Some(position) = self.position_of(&connection, entry, &made).await? {
                return Ok(position);
            }
            self.own.change(&entry.entry_ref.id, |own| own.known = Known::default());
            let message = "the entry was removed again";
            return Err(Error::new(ErrorKind::Unavailable, "enter", message));
        }
        let data = StoredEntry::new(entry, own.since_ms).to_bytes()?.into();
        let (made, children) = self.make(&connection, entry, &data).await?;
        self.tree.found(&entry.entry_ref.queue);
        let children = children.map_err(|error| {
            // The node was made, but the list of names, which shows the node's blocker, is missing. So the effect is unknown.
            from_zookeeper("enter", &error).with_effect(Effect::Unknown)
        })?;
        let blocker = self.blocker(&connection, entry, made.number, &children).await;
        let in_doubt = |error: Error| error.with_effect(Effect::Unknown);
        Ok(Position { seq: made.seq, blocker: blocker.map_err(in_doubt)? })
    }

    fn was_sent(&self, entry: &EntryRef) -> bool {
        self.own.own(&entry.id).is_some_and(|own| own.known.asked.is_some())
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let own = self.own.own(&entry.entry_ref.id).filter(|own| own.session == entry.session);
        let Some(Own { mode, since_ms, known, .. }) = own else { return Ok(false) };
        if mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // The node's name says that the entry is shared, and a name cannot be changed. And other shared entries may hold the
            // lock now.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let Some(mut made) = known.made.filter(|made| made.seq == seq) else { return Ok(false) };
        let connection = self.sessions.of("update", entry.session)?;
        let data = StoredEntry::new(entry, since_ms).to_bytes()?;
        // If an earlier update took effect but its answer was lost, `made.updates` is too small. Then the right count is read from
        // the node, and the write is tried once more.
        for _ in 0..2 {
            match self.write_entry(&connection, entry, &made, &data).await? {
                Ok(()) => {
                    self.know(&entry.entry_ref.id, Made { updates: made.updates + 1, ..made });
                    return Ok(true);
                }
                Err(ZooKeeperError::NoNode) => return Ok(false),
                Err(ZooKeeperError::BadVersion) => {
                    let path = self.tree.entry(&entry.entry_ref.queue, &made.name);
                    let Some(found) = connection.read_one("update", path).await? else {
                        return Ok(false);
                    };
                    made.updates = found.stat.version;
                }
                Err(error) => return Err(from_zookeeper("update", &error)),
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "update", "it was updated by somebody else");
        Err(error.with_effect(Effect::None))
    }

    async fn leave(&self, entry: &EntryRef, _seq: Option<u64>) -> Result<()> {
        let queue = self.tree.queue(&entry.queue);
        let Some(own) = self.own.own(&entry.id) else {
            let name = self.style.name(&entry.id);
            if self.style.read(&name).is_none() {
                // The id is one that this library makes, and not the name of a listed node. So the entry was ours, and it has left
                // before, or its session is over. Nothing is left to remove.
                return Ok(());
            }
            let path = format!("{queue}/{name}");
            let connection = self.sessions.newest("leave")?;
            return delete(&connection, &path).await.map_err(no_loss);
        };
        let connection = self.sessions.of("leave", own.session)?;
        let name = match own.known {
            Known { made: Some(made), .. } => Some(made.name),
            // A request to make the node was sent, and no answer has said whether the node was made.
            Known { asked: Some(version), .. } => {
                self.listed(&connection, "leave", entry, version).await?
            }
            Known { asked: None, .. } => None,
        };
        if let Some(name) = name {
            let path = format!("{queue}/{name}");
            delete(&connection, &path).await?;
            connection.watch_room.left(&path);
        }
        self.own.remove(&entry.id);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let made = self.own.own(&entry.entry_ref.id).and_then(|own| own.known.made);
        let Some(made) = made.filter(|made| made.seq == seq) else { return Ok(None) };
        let connection = self.sessions.of("position", entry.session)?;
        self.position_of(&connection, entry, &made).await
    }

    /// Reads the entry's node, and not the whole queue. The server is not brought up to date first: whatever it has answered or
    /// notified this session of, it knows, and so does each server to which the session moves.
    async fn is_there(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let made = self.own.own(&entry.entry_ref.id).and_then(|own| own.known.made);
        let Some(made) = made.filter(|made| made.seq == seq) else { return Ok(false) };
        let connection = self.sessions.of("watch", entry.session)?;
        let path = self.tree.entry(&entry.entry_ref.queue, &made.name);
        let found = connection.read_one("watch", path).await?;
        Ok(found.is_some_and(|found| number(found.stat.czxid) == seq))
    }

    fn lists_held(&self) -> bool {
        true
    }

    /// Lists the session's ephemeral nodes.
    async fn missing(&self, session: SessionId, held: &[EntryRef]) -> Result<Option<Vec<EntryId>>> {
        let path = |entry: &EntryRef| {
            let made = self.own.own(&entry.id)?.known.made?;
            Some(self.tree.entry(&entry.queue, &made.name))
        };
        let paths: Vec<_> = held.iter().map(path).collect();
        let bytes = paths.iter().flatten().map(|path| path.len() + AROUND_PATH).sum::<usize>();
        if bytes > LONGEST_LIST {
            return Ok(None);
        }
        let connection = self.sessions.of("watch", session)?;
        let root = self.tree.root();
        let listing = connection
            .call("watch", |client: Arc<Client>| async move { client.list_ephemerals(root).await });
        let there: HashSet<String> = listing.await?.into_iter().collect();
        let is_missing = |path: Option<&String>| path.is_none_or(|path| !there.contains(path));
        let missing = held.iter().zip(&paths).filter(|(_, path)| is_missing(path.as_ref()));
        Ok(Some(missing.map(|(entry, _)| entry.id.clone()).collect()))
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let connection = self.sessions.newest("list")?;
        self.list(&connection, queue, Sight::Moment).await.map_err(no_loss)
    }

    async fn read_standing(&self, queue: &QueueKey) -> Result<Listing> {
        let connection = self.sessions.newest("list")?;
        self.list(&connection, queue, Sight::Standing).await.map_err(no_loss)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let connection = self.sessions.newest("list")?;
        self.names_of_queues(&connection, kind, from).await.map_err(no_loss)
    }
}

impl Zookeeper {
    /// Writes an entry's data, on condition that its node was updated exactly `made.updates` times.
    async fn write_entry(
        &self,
        connection: &Connection,
        entry: &NewEntry,
        made: &Made,
        data: &[u8],
    ) -> Result<Result<(), ZooKeeperError>> {
        let path = self.tree.entry(&entry.entry_ref.queue, &made.name);
        let queue = self.tree.queue(&entry.entry_ref.queue);
        let writing = |client: Arc<Client>| async move {
            let mut writer = client.new_multi_writer();
            writer.add_set_data(&path, data, Some(made.updates))?;
            // This tells readers of the queue which entry was updated: see `reads.rs`.
            writer.add_set_data(&queue, made.name.as_bytes(), None)?;
            writer.commit().await?;
            Ok(())
        };
        connection.raw_call("update", writing).await
    }

    /// The blocker of the entry whose node has the number `number`. The blocker is found by the names of the queue's nodes. If the
    /// names do not say enough, the data of some nodes are read.
    async fn blocker(
        &self,
        connection: &Connection,
        entry: &NewEntry,
        number: i32,
        children: &[String],
    ) -> Result<Option<Blocker>> {
        let queue = &entry.entry_ref.queue;
        let before = children
            .iter()
            .filter_map(|child| self.style.read(child))
            .filter(|node| node.is_before(number) && node.mode.blocks(entry.mode));
        if entry.mode == Mode::Exclusive && !queue.is_hashed() {
            let newest = before.max_by_key(|node| node.age(number));
            return Ok(newest.map(|node| self.blocker_of(node)));
        }
        // From the newest node to the oldest.
        let mut before: Vec<_> = before.collect();
        before.sort_unstable_by_key(|node| -i64::from(node.age(number)));
        let parent = self.tree.queue(queue);
        // If an exclusive entry was downgraded to shared, its node keeps its name, and only the node's data show the new mode.
        // Downgraded entries are few, so the blocker is nearly always among the nodes that are read first.
        for nodes in before.chunks(NEWEST) {
            let paths: Vec<_> =
                nodes.iter().map(|node| format!("{parent}/{}", node.name)).collect();
            let (_, found) = connection.read("position", false, None, &paths).await?;
            for (node, found) in nodes.iter().zip(found) {
                let Some(found) = found else { continue };
                check_name(queue, &found.data)?;
                if mode_in(node.mode, &found.data).blocks(entry.mode) {
                    return Ok(Some(self.blocker_of(*node)));
                }
            }
        }
        Ok(None)
    }

    fn blocker_of(&self, node: Node<'_>) -> Blocker {
        // The blocker's sequence number is not in the name of its node. `seq` may be zero: it would distinguish later nodes with
        // the same name, but no other node ever has this name.
        Blocker { id: self.style.id(node), seq: 0 }
    }

    /// Whether the entry of the node `path`, whose data are `data`, blocks a later entry of this mode.
    pub(super) fn blocks(&self, path: &str, data: &[u8], mode: Mode) -> bool {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        let node = self.style.read(name);
        node.is_none_or(|node| mode_in(node.mode, data).blocks(mode))
    }

    async fn position_of(
        &self,
        connection: &Connection,
        entry: &NewEntry,
        made: &Made,
    ) -> Result<Option<Position>> {
        let children = self.siblings_of(connection, "position", &entry.entry_ref.queue).await?;
        // If the name is listed, the node is ours: no other node ever has this name, and the server deletes the node when its
        // session ends.
        if !children.contains(&made.name) {
            return Ok(None);
        }
        let blocker = self.blocker(connection, entry, made.number, &children).await?;
        Ok(Some(Position { seq: made.seq, blocker }))
    }

    async fn list(
        &self,
        connection: &Connection,
        queue: &QueueKey,
        sight: Sight,
    ) -> Result<Listing> {
        let begun = self.watches.told(connection, queue);
        let parent = self.tree.queue(queue);
        let above = [parent.clone(), self.tree.value(queue), self.tree.values(queue.kind())];
        let (mut asked, mut before, mut tries) = (Vec::new(), None, 0);
        while tries < READS {
            tries += 1;
            let is_first = asked.is_empty();
            // If entries come and go faster than their nodes are read, no read shows the queue as of one moment. `read_standing`
            // needs less (`Sight::Standing`): all nodes in the last list of names are read, and then the names are listed once
            // more. The entries in both lists have existed all the time in between, and are returned.
            let is_last = sight == Sight::Standing && tries > EXACT;
            if let Some(Look { names, .. }) = before.as_ref().filter(|_| is_last) {
                asked.clone_from(names);
            }
            let others = asked.split_off(asked.len().min(BATCH));
            // The first batch is read below, together with the list of names. All other batches are read here, without the list:
            // with ten thousand nodes, the list has a megabyte, so it should not be in every answer.
            let mut read_before = HashMap::new();
            for others in others.chunks(BATCH) {
                read_before.extend(self.learn(connection, queue, others).await?);
            }
            let nodes = asked.iter().map(|name| format!("{parent}/{name}"));
            let paths: Vec<_> = above.iter().cloned().chain(nodes).collect();
            let reading = connection.read("list", is_first, Some(&parent), &paths);
            let (children, found) = reading.await?;
            let mut found = found.into_iter();
            let mut next = || found.next().flatten();
            let (node, value, values) = (next(), next(), next());
            let seen = Seen::new(values.as_ref(), value.as_ref(), children.is_some());
            self.seen.note(queue.clone(), seen);
            let mut names = children.unwrap_or_default();
            names.retain(|name| self.style.read(name).is_some());
            let age = Age::new(connection.owner, node.as_ref().map(|node| &node.stat));
            let updated = node.map(|node| node.data).unwrap_or_default();
            let fresh = self.entries_of(queue, &asked, found)?;
            if let Some(before) = before.take_if(|_| is_last) {
                let standing: HashSet<_> = names.into_iter().collect();
                let entries = read_before.into_iter().chain(fresh);
                let entries = entries.filter(|(name, _)| standing.contains(name));
                let entries = entries.map(|(_, entry)| entry).collect();
                let listing = listing(queue, entries, before.value)?;
                self.watches.read(queue, listing.revision, begun);
                return Ok(listing);
            }
            let now = Look { age, updated, names, value };
            // Suppose that no entry was updated between the last read and this one (`age` is the same). Then the nodes that this
            // read has found belong to the list of names of the last read: together they show the queue as of the moment of the
            // last read.
            let before_it: Option<Look> = before.take().filter(|before: &Look| before.age == age);
            let looks = before_it.into_iter().chain([now]);
            for look in looks {
                match self.reads.look(queue, look.age, &look.updated, &fresh, &look.names) {
                    Ok(entries) => {
                        let listing = listing(queue, entries, look.value)?;
                        self.watches.read(queue, listing.revision, begun);
                        return Ok(listing);
                    }
                    Err(unknown) => (asked, before) = (unknown, Some(look)),
                }
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "list", "the queue changes all the time"))
    }

    /// Reads these nodes of a queue, and keeps them for later reads.
    async fn learn(
        &self,
        connection: &Connection,
        queue: &QueueKey,
        names: &[String],
    ) -> Result<HashMap<String, Written>> {
        let parent = self.tree.queue(queue);
        let nodes = names.iter().map(|name| format!("{parent}/{name}"));
        let paths: Vec<_> = iter::once(parent.clone()).chain(nodes).collect();
        let (_, found) = connection.read("list", false, None, &paths).await?;
        let mut found = found.into_iter();
        let node = found.next().flatten();
        let age = Age::new(connection.owner, node.as_ref().map(|node| &node.stat));
        let fresh = self.entries_of(queue, names, found)?;
        let updated = node.map(|node| node.data).unwrap_or_default();
        self.reads.learn(queue, age, &updated, fresh.clone());
        Ok(fresh)
    }

    /// The entries of the nodes `names`, which were read with the result `found`.
    fn entries_of(
        &self,
        queue: &QueueKey,
        names: &[String],
        found: impl Iterator<Item = Option<Found>>,
    ) -> Result<HashMap<String, Written>> {
        let mut entries = HashMap::new();
        for (name, found) in names.iter().zip(found) {
            // A node that does not exist is skipped: its entry has left.
            if let (Some(Found { data, stat }), Some(node)) = (found, self.style.read(name)) {
                check_name(queue, &data)?;
                let entry = entry_of(self.style.id(node), node, &data, &stat);
                entries.insert(name.clone(), (entry, stat.mzxid));
            }
        }
        Ok(entries)
    }

    /// One page of the names of the queues of this kind that have an entry. ZooKeeper returns all children of a node in one answer,
    /// so the pages are parts of that answer.
    async fn names_of_queues(
        &self,
        connection: &Connection,
        kind: &str,
        from: Option<&Cursor>,
    ) -> Result<Page> {
        let above = self.tree.queues(kind);
        let left = Left::from(from, connection.children("list", &above)).await?;
        let (queues, next) = left.page();
        let paths: Vec<_> = queues.iter().map(|queue| format!("{above}/{queue}")).collect();
        let listed = connection.children_of("list", &paths, QUEUES).await?;
        let mut entries: HashMap<_, _> = queues.iter().cloned().zip(listed).collect();
        // A queue that has become empty still has a node until the server removes it. Such queues are left out.
        entries.retain(|_, children| {
            children.retain(|child| self.style.read(child).is_some());
            !children.is_empty()
        });
        let (above, known) = (&above, &entries);
        let read = |batch: Vec<String>, extent| async move {
            let mut texts = Vec::new();
            for queue in batch {
                if !key::is_hashed(&queue) {
                    texts.push((queue, Vec::new()));
                    continue;
                }
                let limit = if extent == Extent::One { 1 } else { BATCH };
                let nodes = known.get(&queue).into_iter().flatten().take(limit);
                let paths: Vec<_> = nodes.map(|node| format!("{above}/{queue}/{node}")).collect();
                let (_, found) = connection.read("list", false, None, &paths).await?;
                texts.extend(found.into_iter().flatten().map(|found| (queue.clone(), found.data)));
            }
            Ok(texts)
        };
        Ok(Page { names: names::of_entries(entries.keys().cloned(), read).await?, next })
    }
}

/// What one read has found of a queue, all as of one moment.
struct Look {
    age: Age,
    /// The name of the node whose entry was updated last.
    updated: Vec<u8>,
    names: Vec<String>,
    value: Option<Found>,
}

fn listing(queue: &QueueKey, mut entries: Vec<Written>, value: Option<Found>) -> Result<Listing> {
    // Sorts the entries by the numbers of the transactions that made their nodes, which rise for ever. The numbers in the names of
    // the nodes wrap.
    entries.sort_unstable_by_key(|(entry, _)| entry.seq);
    let mut hasher = DefaultHasher::new();
    let mut listing = Listing::default();
    for (entry, written) in entries {
        (entry.seq, written).hash(&mut hasher);
        listing.entries.push(entry);
    }
    if let Some(Found { data, stat }) = value {
        check_name(queue, &data)?;
        stat.mzxid.hash(&mut hasher);
        listing.value = Some(value_of(&data, &stat)?);
    }
    listing.revision = hasher.finish();
    Ok(listing)
}

/// Removes a node. If it does not exist, does nothing.
async fn delete(connection: &Connection, path: &str) -> Result<()> {
    let deleting = connection
        .raw_call("leave", |client: Arc<Client>| async move { client.delete(path, None).await });
    match deleting.await? {
        Ok(()) | Err(ZooKeeperError::NoNode) => Ok(()),
        Err(ZooKeeperError::NoAuth) => {
            let queue = path.rsplit_once('/').map_or(path, |(queue, _)| queue);
            Err(lacking("leave", "delete", queue))
        }
        Err(error) => Err(from_zookeeper("leave", &error)),
    }
}
