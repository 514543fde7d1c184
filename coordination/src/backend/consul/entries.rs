//! Entries: keys that a session has locked.

use async_trait::async_trait;

use super::Consul;
use super::entry::{blocker_in, check_pair, entry_of};
use super::keys::{CLOSING, VALUE};
use super::kv::{BATCH, Operation, Outcome, Pair, Refusal, read_all, read_together};
use super::txn::{check, kept};
use super::values::value_of;
use crate::backend::server::reads;
use crate::backend::server::stored::StoredEntry;
use crate::backend::server::txn_kv::TxnKv;
use crate::backend::{Blocker, Cursor, Entries, EntryRef, Listing, Mode, NewEntry, Page, Position};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Consul {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let keys = self.txn_kv.keys(&entry.entry_ref.queue);
        let removed = || Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again");
        // Whoever writes on condition that there is no entry has to look again. Most often nobody does.
        let mut not_closing = Operation::is_absent(keys.key(CLOSING));
        let TxnKv { store, key_pool, write_fences, .. } = &*self.txn_kv;
        // Again whenever calls of other entries were in doubt meanwhile, which has ended the write fence.
        loop {
            let ready = self.connections.ready("enter").await?;
            let write_fence = write_fences.of(entry.session)?;
            let id = store.id("enter", entry.session)?;
            let long_queue = self.in_the_way(entry);
            let own = key_pool.sent(entry, write_fence.version);
            let key = keys.key(&own.known.name);
            let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
            let enter = [
                check(write_fence.holds()),
                Operation::is_absent(key.as_str()),
                not_closing.clone(),
                Operation::lock(key.as_str(), &value, &*id),
                Operation::read(if long_queue.is_some() { key.as_str() } else { keys.prefix() }),
            ];
            let outcome = store.make_on(ready, &enter).await;
            if !matches!(&outcome, Err(error) if error.effect() == Effect::Unknown) {
                key_pool.answered(&entry.entry_ref);
            }
            match outcome? {
                Outcome::Done(pairs) => {
                    // Of what was written there is no value, and it is the first: what was read counts.
                    let pairs = pairs.get(1..).unwrap_or_default();
                    let position = self.place(entry, None, pairs)?.ok_or_else(removed)?;
                    if long_queue.is_none() {
                        self.long_queues.read(&entry.entry_ref.queue, &keys, pairs);
                    }
                    let entered = (&*own.known.name, position.seq);
                    self.long_queues.entered(&entry.entry_ref.queue, entered, entry.mode);
                    return Ok(Position { blocker: long_queue.or(position.blocker), ..position });
                }
                Outcome::Refused(Refusal { nth: 0, .. }) => {
                    let found = read_all(&self.connections, "enter", &write_fence.key).await?.0;
                    let own = found.iter().find(|pair| *pair.key == *write_fence.key);
                    self.txn_kv.learn(&write_fence, own.map(kept).as_ref())?;
                }
                // An earlier call got through, and its answer was lost.
                Outcome::Refused(Refusal { nth: 1, .. }) => {
                    let pairs = self.look("enter", &entry.entry_ref.queue).await?;
                    return self.place(entry, None, &pairs)?.ok_or_else(removed);
                }
                Outcome::Refused(Refusal { nth: 2, .. }) => {
                    not_closing = Operation::delete(keys.key(CLOSING));
                }
                Outcome::Refused(Refusal { message, .. }) => {
                    return Err(Error::new(ErrorKind::Unavailable, "enter", message));
                }
            }
        }
    }

    fn was_sent(&self, entry: &EntryRef) -> bool {
        self.txn_kv.key_pool.own(entry).is_some()
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        self.txn_kv.update(entry, seq).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.txn_kv.key(entry);
        let left = self.txn_kv.leave(entry, seq).await;
        if left.as_ref().is_err_and(|error| error.loss_reason().is_none()) {
            return left;
        }
        // It is gone, if only with its session.
        self.long_queues.gone(&entry.queue, seq);
        // Before the key may be used again.
        self.watches.tell_gone(&key, seq);
        self.txn_kv.key_pool.free(entry);
        left
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let pairs = match self.long_queues.before(&entry.entry_ref.queue, seq) {
            Some(before) => self.look_before(entry, &before).await?,
            None => self.look("position", &entry.entry_ref.queue).await?,
        };
        self.place(entry, Some(seq), &pairs)
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let keys = self.txn_kv.keys(queue);
        let value = keys.key(VALUE);
        let (pairs, index) = read_all(&self.connections, "list", keys.prefix()).await?;
        self.leftovers.remove(&keys, &pairs);
        let (mut listing, mut listed) = (Listing::default(), Vec::new());
        for pair in &pairs {
            let entry = entry_of(pair, &keys);
            let is_value = pair.key == value;
            if is_value || entry.is_some() {
                check_pair(queue, pair)?;
                listed.push(pair);
            }
            if is_value {
                listing.value = Some(value_of(pair)?);
            }
            listing.entries.extend(entry);
        }
        listing.entries.sort_unstable_by_key(|entry| entry.seq);
        // Consul's index of a queue that is empty moves with all others.
        let listed = listed.iter().map(|pair| (&pair.key, pair.modify_index, pair.is_locked()));
        listing.revision = reads::revision_of(listed);
        self.reads.note(queue, listing.revision, index);
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.txn_kv.queues(kind, from).await
    }
}

impl Consul {
    /// Where an entry stands by what was read of its queue; `None`: it is not there, or not under its session.
    fn place(
        &self,
        entry: &NewEntry,
        seq: Option<u64>,
        pairs: &[Pair],
    ) -> Result<Option<Position>> {
        let queue = &entry.entry_ref.queue;
        let keys = self.txn_kv.keys(queue);
        let session = self.txn_kv.store.id("position", entry.session)?;
        let key = self.txn_kv.key(&entry.entry_ref);
        let own = pairs.iter().filter(|pair| pair.key == key && pair.is_of(&session));
        let Some(found) = own.map(|pair| pair.create_index).next() else { return Ok(None) };
        if seq.is_some_and(|seq| seq != found) {
            return Ok(None);
        }
        self.leftovers.remove(&keys, pairs);
        let blocker = blocker_in(pairs, &keys, queue, (found, entry.mode))?;
        Ok(Some(Position { seq: found, blocker }))
    }

    async fn look(&self, operation: &'static str, queue: &QueueKey) -> Result<Vec<Pair>> {
        let keys = self.txn_kv.keys(queue);
        let (pairs, _) = read_all(&self.connections, operation, keys.prefix()).await?;
        self.long_queues.read(queue, &keys, &pairs);
        Ok(pairs)
    }

    /// An entry of the same session in a long queue, which blocks this one.
    fn in_the_way(&self, entry: &NewEntry) -> Option<Blocker> {
        let last = self.long_queues.last(&entry.entry_ref.queue)?;
        last.id.is_of(entry.session).then_some(last)
    }

    /// Of a long queue, the entry and those that may stand before it, as far as that matters.
    async fn look_before(&self, entry: &NewEntry, before: &[Blocker]) -> Result<Vec<Pair>> {
        let (queue, keys) = (&entry.entry_ref.queue, self.txn_kv.keys(&entry.entry_ref.queue));
        let own = self.txn_kv.key(&entry.entry_ref);
        let mut found = Vec::new();
        let mut batches = before.chunks(BATCH);
        loop {
            let batch = batches.next().unwrap_or_default();
            let names = batch.iter().map(|other| keys.key(other.id.as_str()));
            let reads: Vec<_> =
                std::iter::once(own.clone()).chain(names).map(Operation::read).collect();
            let mut pairs = read_together(&self.connections, "position", &reads).await?;
            // A number is that of one entry, ever; a name may be that of a later one by now.
            let is_there =
                |other: &Blocker| pairs.iter().any(|pair| pair.create_index == other.seq);
            let gone = batch.iter().filter(|other| !is_there(other)).map(|other| other.seq);
            self.long_queues.gone(queue, gone);
            pairs.retain(|pair| {
                let is_of = |other: &Blocker| other.seq == pair.create_index;
                pair.key == own || batch.iter().any(is_of)
            });
            let has_own = pairs.iter().any(|pair| pair.key == own);
            found.retain(|pair: &Pair| pair.key != own);
            found.extend(pairs);
            let is_blocked =
                entry.mode == Mode::Exclusive && found.iter().any(|pair| pair.key != own);
            if !has_own || is_blocked || batch.len() < BATCH {
                return Ok(found);
            }
        }
    }
}
