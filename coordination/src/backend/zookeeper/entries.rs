//! Entries: made, found, read and removed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::{Client, CreateMode, Error as ZooKeeperError};

use super::Zookeeper;
use super::client::{Connection, Found};
use super::entry::{self, Made, entry_of};
use super::error::from_zookeeper;
use super::nodes::Node;
use super::reads::{Age, Seen, Written};
use super::sessions::no_loss;
use super::tree::make_all;
use super::values::value_of;
use crate::backend::server::book::Own;
use crate::backend::server::names::{self, Extent};
use crate::backend::server::stored::{StoredEntry, check_name, mode_in};
use crate::backend::{Blocker, Entries, EntryRef, Listing, Mode, NewEntry, Position};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{self, QueueKey};

/// How many nodes an entry reads at a time of those that may block it.
const NEWEST: usize = 8;
/// How often a queue is read again that changes while it is read.
const READS: usize = 8;
/// How many nodes of a queue are read at once: a request may have a megabyte, a path 500 bytes and more.
const BATCH: usize = 1024;
/// How many queues are looked at together for their names.
const QUEUES: usize = 32;

#[async_trait]
impl Entries for Zookeeper {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let connection = self.sessions.of("enter", entry.session)?;
        let (own, is_known) = self.own.begin(entry, || None);
        if is_known {
            // An earlier call may have got through, and its answer was lost.
            let made = match own.known {
                Some(made) => Some(made),
                None => self.find(&connection, entry).await?,
            };
            if let Some(made) = made {
                if let Some(position) = self.position_of(&connection, entry, &made).await? {
                    return Ok(position);
                }
                self.own.change(&entry.place.id, |own| own.known = None);
                let message = "the entry was removed again";
                return Err(Error::new(ErrorKind::Unavailable, "enter", message));
            }
        }
        let data = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        let (mut made, mut children) = self.make(&connection, entry, data.clone()).await?;
        if matches!(made, Err(ZooKeeperError::NoNode)) {
            // It was known, and the server has removed it since: it was empty for a while.
            self.tree.lost(&entry.place.queue);
            (made, children) = self.make(&connection, entry, data).await?;
        }
        let made = made.map_err(|error| from_zookeeper("enter", &error))?;
        self.tree.found(&entry.place.queue);
        let children = children.map_err(|error| {
            // It stands there: only how is not known.
            from_zookeeper("enter", &error).with_effect(Effect::Unknown)
        })?;
        let blocker = self.blocker(&connection, entry, made.number, &children).await?;
        Ok(Position { seq: made.seq, blocker })
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let own = self.own.own(&entry.place.id).filter(|own| own.session == entry.session);
        let Some(Own { mode, since_ms, known, .. }) = own else { return Ok(false) };
        if mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // Its name says that it is shared; and others may hold beside it.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let Some(made) = known.filter(|made| made.seq == seq) else { return Ok(false) };
        let connection = self.sessions.of("update", entry.session)?;
        let data = StoredEntry::new(entry, since_ms).to_bytes()?;
        let queue = self.tree.queue(&entry.place.queue);
        let written = connection.raw_call("update", |client| async move {
            let mut writer = client.new_multi_writer();
            writer.add_set_data(&format!("{queue}/{}", made.name), &data, None)?;
            // Whoever looks at the queue goes by that: see `reads.rs`.
            writer.add_set_data(&queue, made.name.as_bytes(), None)?;
            Ok(writer.commit().await?)
        });
        match written.await? {
            Ok(_) => Ok(true),
            Err(ZooKeeperError::NoNode) => Ok(false),
            Err(error) => Err(from_zookeeper("update", &error)),
        }
    }

    async fn leave(&self, entry: &EntryRef, _seq: Option<u64>) -> Result<()> {
        let queue = self.tree.queue(&entry.queue);
        let Some(place) = self.own.own(&entry.id) else {
            let name = self.style.name(&entry.id);
            if self.style.read(&name).is_none() {
                // Ours: it has left before, or its session is over.
                return Ok(());
            }
            let path = format!("{queue}/{name}");
            let connection = self.sessions.newest("leave")?;
            return delete(&connection, &path).await.map_err(no_loss);
        };
        let connection = self.sessions.of("leave", place.session)?;
        let name = match place.known {
            Some(made) => Some(made.name),
            // Whether it was made is not known: what was sent before is through by this answer.
            None => self.listed(&connection, "leave", entry).await?,
        };
        if let Some(name) = name {
            delete(&connection, &format!("{queue}/{name}")).await?;
        }
        self.own.remove(&entry.id);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let made = self.own.own(&entry.place.id).and_then(|own| own.known);
        let Some(made) = made.filter(|made| made.seq == seq) else { return Ok(None) };
        let connection = self.sessions.of("position", entry.session)?;
        self.position_of(&connection, entry, &made).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let connection = self.sessions.newest("list")?;
        self.list(&connection, queue).await.map_err(no_loss)
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        let connection = self.sessions.newest("list")?;
        self.names_of_queues(&connection, kind).await.map_err(no_loss)
    }
}

impl Zookeeper {
    /// Makes an entry's node, and what it needs above, and lists its siblings, all sent before the first answer.
    ///
    /// If the future is dropped, an answer that comes late is noted all the same: whoever asks again need not look for
    /// the node, which on a slow network takes as long.
    async fn make(
        &self,
        connection: &Arc<Connection>,
        entry: &NewEntry,
        data: Vec<u8>,
    ) -> Result<(Result<Made, ZooKeeperError>, Result<Vec<String>, ZooKeeperError>)> {
        let queue = self.tree.queue(&entry.place.queue);
        let prefix = self.style.prefix(&entry.place.id, entry.mode);
        let options = CreateMode::EphemeralSequential.with_acls(self.tree.acls());
        let missing = self.tree.missing(&entry.place.queue);
        let (own, id) = (Arc::clone(&self.own), entry.place.id.clone());
        let making = |client: Arc<Client>| async move {
            let path = format!("{queue}/{prefix}");
            let making = make_all(&client, &missing);
            let create = client.create(&path, &data, &options);
            let list = client.list_children(&queue);
            let (failed, mut created, listed) = tokio::join!(making, create, list);
            if let (Some(failed), Err(_)) = (failed, &created) {
                created = Err(failed);
            }
            let made = created.map(|(stat, number)| {
                // The crate reads what may be negative as 64 bits.
                let number = number.into_i64() as i32;
                let name = format!("{prefix}{number:010}");
                Made { name, number, seq: entry::number(stat.czxid) }
            });
            if let Ok(made) = &made {
                own.change(&id, |own| own.known = Some(made.clone()));
            }
            Ok((made, listed))
        };
        connection.detached_call("enter", making).await
    }

    /// The node that an earlier call has made for an entry, if it has and the entry is this session's.
    async fn find(&self, connection: &Connection, entry: &NewEntry) -> Result<Option<Made>> {
        let queue = self.tree.queue(&entry.place.queue);
        let Some(name) = self.listed(connection, "enter", &entry.place).await? else {
            return Ok(None);
        };
        let number = self.style.read(&name).map(|node| node.number).unwrap_or_default();
        let found = connection.read_one("enter", format!("{queue}/{name}")).await?;
        // `R3`: never an entry of another session.
        let own = found.filter(|found| found.stat.ephemeral_owner == connection.owner);
        Ok(own.map(|found| {
            let made = Made { name, number, seq: entry::number(found.stat.czxid) };
            self.own.change(&entry.place.id, |own| own.known = Some(made.clone()));
            made
        }))
    }

    /// The name of the node that an entry of ours has by now, after everything that this session has sent before.
    async fn listed(
        &self,
        connection: &Connection,
        operation: &'static str,
        entry: &EntryRef,
    ) -> Result<Option<String>> {
        let queue = self.tree.queue(&entry.queue);
        let name = self.style.name(&entry.id);
        let children = connection.children(operation, &queue).await?;
        let is_it = |child: &String| child.starts_with(&name) && self.style.read(child).is_some();
        Ok(children.into_iter().find(is_it))
    }

    /// What blocks the entry with this number, by the names of its siblings and, where they do not tell, their data.
    async fn blocker(
        &self,
        connection: &Connection,
        entry: &NewEntry,
        number: i32,
        children: &[String],
    ) -> Result<Option<Blocker>> {
        let queue = &entry.place.queue;
        let before = children
            .iter()
            .filter_map(|child| self.style.read(child))
            .filter(|node| node.is_before(number) && node.mode.blocks(entry.mode));
        if entry.mode == Mode::Exclusive && !queue.is_hashed() {
            let newest = before.max_by_key(|node| node.age(number));
            return Ok(newest.map(|node| self.blocker_of(node)));
        }
        // The newest first.
        let mut before: Vec<_> = before.collect();
        before.sort_unstable_by_key(|node| -i64::from(node.age(number)));
        let parent = self.tree.queue(queue);
        // One that was downgraded says so in its data. Those are few, so that one read tells nearly always.
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
        // Its own number is in no answer so far. None is needed: no other node is ever called like this one.
        Blocker { id: self.style.id(node), seq: 0 }
    }

    /// Whether this node, whose data was read, keeps a later entry of this mode waiting.
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
        let queue = self.tree.queue(&entry.place.queue);
        let (children, _) = connection.read("position", false, Some(&queue), &[]).await?;
        let children = children.unwrap_or_default();
        // Its name is enough: no other node was ever called like it, and it goes with its session.
        if !children.contains(&made.name) {
            return Ok(None);
        }
        let blocker = self.blocker(connection, entry, made.number, &children).await?;
        Ok(Some(Position { seq: made.seq, blocker }))
    }

    async fn list(&self, connection: &Connection, queue: &QueueKey) -> Result<Listing> {
        let begun = self.watches.told(connection, queue);
        let parent = self.tree.queue(queue);
        let above = [parent.clone(), self.tree.value(queue), self.tree.values(queue.kind())];
        let (mut asked, mut before, mut tries) = (Vec::new(), None, 0);
        while tries < READS {
            let (is_first, is_long) = (asked.is_empty(), asked.len() > BATCH);
            asked.truncate(BATCH);
            let nodes = asked.iter().map(|name| format!("{parent}/{name}"));
            let paths: Vec<_> = above.iter().cloned().chain(nodes).collect();
            let reading = connection.read("list", is_first, Some(&parent), &paths);
            let (children, found) = reading.await?;
            tries += usize::from(!is_long);
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
            let now = Look { age, updated, names, value };
            // Not updated since: who comes now need not be looked at too.
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

    /// The entries of nodes that were read.
    fn entries_of(
        &self,
        queue: &QueueKey,
        names: &[String],
        found: impl Iterator<Item = Option<Found>>,
    ) -> Result<HashMap<String, Written>> {
        let mut entries = HashMap::new();
        for (name, found) in names.iter().zip(found) {
            // Some have left since.
            if let (Some(Found { data, stat }), Some(node)) = (found, self.style.read(name)) {
                check_name(queue, &data)?;
                let entry = entry_of(self.style.id(node), node, &data, &stat);
                entries.insert(name.clone(), (entry, stat.mzxid));
            }
        }
        Ok(entries)
    }

    /// The names of the queues of this kind that have an entry, in order.
    async fn names_of_queues(&self, connection: &Connection, kind: &str) -> Result<Vec<String>> {
        let above = self.tree.queues(kind);
        let queues = connection.children("list", &above).await?;
        let paths: Vec<_> = queues.iter().map(|queue| format!("{above}/{queue}")).collect();
        let listed = connection.children_of("list", &paths, QUEUES).await?;
        let mut entries: HashMap<_, _> = queues.into_iter().zip(listed).collect();
        // An empty queue has a node until the server removes it.
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
        names::of_entries(entries.keys().cloned(), read).await
    }
}

/// What a look at a queue saw, as of one moment.
struct Look {
    age: Age,
    /// Which node was updated last.
    updated: Vec<u8>,
    names: Vec<String>,
    value: Option<Found>,
}

fn listing(queue: &QueueKey, mut entries: Vec<Written>, value: Option<Found>) -> Result<Listing> {
    // What made them tells their order for ever; their own numbers wrap.
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

/// Removes a node, if it is there.
async fn delete(connection: &Connection, path: &str) -> Result<()> {
    let deleting = connection
        .raw_call("leave", |client: Arc<Client>| async move { client.delete(path, None).await });
    match deleting.await? {
        Ok(()) | Err(ZooKeeperError::NoNode) => Ok(()),
        Err(error) => Err(from_zookeeper("leave", &error)),
    }
}
