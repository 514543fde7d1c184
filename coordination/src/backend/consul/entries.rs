//! Entries: keys that a session has locked.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::client::Request;
use super::entry::{blocker_in, check_pair, counts, entry_of};
use super::keys::queue_of_entry;
use super::kv::{
    Operation, Outcome, Pair, Refusal, delete, names, read_all, read_together, transact,
};
use super::values::value_of;
use super::{BATCH, Consul, TRIES};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, queue_name};
use crate::backend::{Blocker, Entries, EntryRef, Listing, Mode, NewEntry, Position};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Consul {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let keys = self.keys(&entry.place.queue);
        let removed = || Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again");
        // Whoever writes on condition that there is no entry has to look again. Most often nobody does.
        let mut not_closing = Operation::is_absent(keys.closing());
        for _ in 0..TRIES {
            let admission = self.sessions.admission(entry.session)?;
            let crowd = self.in_the_way(entry);
            let own = self.slots.sent(entry);
            let key = keys.entry(&own.name);
            let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
            let enter = [
                admission.holds(),
                Operation::is_absent(key.as_str()),
                not_closing.clone(),
                Operation::lock(key.as_str(), &value, &admission.id),
                Operation::read(if crowd.is_some() { key.as_str() } else { keys.prefix() }),
            ];
            let outcome = transact(&self.connections, "enter", &enter).await;
            if !matches!(&outcome, Err(error) if error.effect() == Effect::Unknown) {
                self.slots.answered(&entry.place);
            }
            match outcome? {
                Outcome::Done(pairs) => {
                    // Of what was written there is no value, and it is the first: what was read counts.
                    let pairs = pairs.get(1..).unwrap_or_default();
                    let position = self.place(entry, None, pairs)?.ok_or_else(removed)?;
                    if crowd.is_none() {
                        self.crowds.read(&entry.place.queue, &keys, pairs);
                    }
                    let entered = (&*own.name, position.seq);
                    self.crowds.entered(&entry.place.queue, entered, entry.mode);
                    return Ok(Position { blocker: crowd.or(position.blocker), ..position });
                }
                Outcome::Refused(refusal) if refusal.is_of_no_session() => {
                    return Err(Error::lost("enter", LossReason::ExpiredByServer));
                }
                Outcome::Refused(Refusal { nth: 0, .. }) => {
                    self.sessions.learn(&self.connections, "enter", &admission).await?;
                }
                // An earlier call got through, and its answer was lost.
                Outcome::Refused(Refusal { nth: 1, .. }) => {
                    let pairs = self.look("enter", &entry.place.queue).await?;
                    return self.place(entry, None, &pairs)?.ok_or_else(removed);
                }
                Outcome::Refused(Refusal { nth: 2, .. }) => {
                    not_closing = Operation::delete(keys.closing());
                }
                Outcome::Refused(Refusal { message, .. }) => {
                    return Err(Error::new(ErrorKind::Unavailable, "enter", message));
                }
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "enter", "other calls were in doubt meanwhile"))
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let place = &entry.place;
        let Some(own) = self.slots.own(place) else { return Ok(false) };
        if own.mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // Others may hold beside it.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let session = self.session("update", entry.session)?;
        let key = self.key(place);
        let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        let number = self.slots.count_update(place);
        let mut known = own.updated.unwrap_or(seq);
        // An update before may have had its effect without our knowledge: once more, then.
        for _ in 0..2 {
            let update = [
                // No other entry has it, and neither has this one when another update was later.
                Operation::is_unchanged(key.as_str(), known),
                Operation::lock(key.as_str(), &value, &session).numbered(number),
            ];
            let found = match transact(&self.connections, "update", &update).await? {
                Outcome::Done(pairs) => {
                    let updated = pairs.first().map_or(known, |pair| pair.modify_index);
                    self.slots.updated(place, updated, entry.mode);
                    return Ok(true);
                }
                Outcome::Refused(refusal) if refusal.is_of_no_session() => {
                    return Err(Error::lost("update", LossReason::ExpiredByServer));
                }
                Outcome::Refused(_) => read_all(&self.connections, "update", &key).await?.0,
            };
            let is_own =
                |pair: &&Pair| pair.key == key && pair.create_index == seq && pair.is_of(&session);
            let Some(own) = found.iter().find(is_own) else { return Ok(false) };
            known = own.modify_index;
            if own.value() == value {
                self.slots.updated(place, known, entry.mode);
                return Ok(true);
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "update", "it was updated by somebody else");
        Err(error.with_effect(Effect::None))
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.key(entry);
        let in_doubt = self.slots.in_doubt(entry);
        match in_doubt.and_then(|session| self.sessions.admission(session).ok()) {
            None if self.slots.delete(entry) => delete(&self.connections, "leave", &key).await?,
            None => {
                // Of one that is none of ours, or not any longer, there is nothing without a number.
                let Some(seq) = seq else { return Ok(()) };
                self.delete_other(&key, seq).await?;
            }
            // A call that was given up may still reach the servers.
            Some(admission) => {
                let (connections, delete) = (&self.connections, Operation::delete(key.as_str()));
                let left = self
                    .sessions
                    .admit_anew(connections, "leave", &admission, Some(delete))
                    .await?;
                match left {
                    // The session is over, and all that was entered under it.
                    Outcome::Refused(refusal) if !refusal.is_of_no_session() => {
                        let message = refusal.message;
                        return Err(Error::new(ErrorKind::Unavailable, "leave", message));
                    }
                    _ => {}
                }
            }
        }
        self.crowds.gone(&entry.queue, seq);
        // Before the key may be used again.
        self.watches.tell_gone(&key, seq);
        self.slots.free(entry);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let pairs = match self.crowds.before(&entry.place.queue, seq) {
            Some(before) => self.look_before(entry, &before).await?,
            None => self.look("position", &entry.place.queue).await?,
        };
        self.place(entry, Some(seq), &pairs)
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let keys = self.keys(queue);
        let (pairs, index) = read_all(&self.connections, "list", keys.prefix()).await?;
        self.leftovers.remove(&keys, &pairs);
        let (mut listing, mut listed) = (Listing::default(), Vec::new());
        for pair in &pairs {
            let entry = entry_of(pair, &keys);
            let is_value = pair.key == keys.value();
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

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let request = Request::get(format!("kv/{prefix}")).with("keys").with("consistent");
        let listed = names("list", self.connections.send("list", request).await?)?;
        // One of each queue's keys.
        let queues: BTreeMap<_, _> =
            listed.iter().filter_map(|key| Some((queue_of_entry(key, &prefix)?, key))).collect();
        let queues: Vec<_> = queues.into_iter().collect();
        let name_in = |queue: &str, pairs: &[Pair]| {
            let of_queue = |pair: &&Pair| queue_of_entry(&pair.key, &prefix) == Some(queue);
            let mut entries = pairs.iter().filter(of_queue).filter(|pair| counts(pair));
            entries.find_map(|pair| queue_name(queue, &pair.value()))
        };
        let mut names = Vec::new();
        for batch in queues.chunks(BATCH) {
            let reads: Vec<_> =
                batch.iter().map(|(_, key)| Operation::read(key.as_str())).collect();
            let pairs = read_together(&self.connections, "list", &reads).await?;
            for (queue, _) in batch {
                let mut name = name_in(queue, &pairs);
                if name.is_none() {
                    // It has left meanwhile, or never came with a session: others may be there.
                    let keys = format!("{prefix}{queue}/");
                    let (pairs, _) = read_all(&self.connections, "list", &keys).await?;
                    name = name_in(queue, &pairs);
                }
                names.extend(name);
            }
        }
        names.sort_unstable();
        Ok(names)
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
        let queue = &entry.place.queue;
        let keys = self.keys(queue);
        let session = self.session("position", entry.session)?;
        let key = self.key(&entry.place);
        let own = pairs.iter().filter(|pair| pair.key == key && pair.is_of(&session));
        let Some(found) = own.map(|pair| pair.create_index).next() else { return Ok(None) };
        if seq.is_some_and(|seq| seq != found) {
            return Ok(None);
        }
        self.leftovers.remove(&keys, pairs);
        let blocker = blocker_in(pairs, &keys, queue, (found, entry.mode))?;
        Ok(Some(Position { seq: found, blocker }))
    }

    /// Deletes the entry of this number, which may be somebody else's, and none that has its key by now.
    async fn delete_other(&self, key: &str, seq: u64) -> Result<()> {
        let mut modified = seq;
        loop {
            let steps = [Operation::is_unchanged(key, modified), Operation::delete(key)];
            if let Outcome::Done(_) = transact(&self.connections, "leave", &steps).await? {
                return Ok(());
            }
            // It was updated, or it is gone.
            let (found, _) = read_all(&self.connections, "leave", key).await?;
            let is_it = |pair: &&Pair| pair.key == key && pair.create_index == seq;
            match found.iter().find(is_it) {
                Some(pair) => modified = pair.modify_index,
                None => return Ok(()),
            }
        }
    }

    async fn look(&self, operation: &'static str, queue: &QueueKey) -> Result<Vec<Pair>> {
        let keys = self.keys(queue);
        let (pairs, _) = read_all(&self.connections, operation, keys.prefix()).await?;
        self.crowds.read(queue, &keys, &pairs);
        Ok(pairs)
    }

    /// An entry of the same session in a long queue, which blocks this one.
    fn in_the_way(&self, entry: &NewEntry) -> Option<Blocker> {
        let last = self.crowds.last(&entry.place.queue)?;
        let session = entry.session.to_string();
        last.id.as_str().starts_with(&session).then_some(last)
    }

    /// Of a long queue, the entry and those that may stand before it, as far as that matters.
    async fn look_before(&self, entry: &NewEntry, before: &[Blocker]) -> Result<Vec<Pair>> {
        let (queue, keys) = (&entry.place.queue, self.keys(&entry.place.queue));
        let own = self.key(&entry.place);
        let mut found = Vec::new();
        let mut batches = before.chunks(BATCH);
        loop {
            let batch = batches.next().unwrap_or_default();
            let names = batch.iter().map(|other| keys.entry(other.id.as_str()));
            let reads: Vec<_> =
                std::iter::once(own.clone()).chain(names).map(Operation::read).collect();
            let mut pairs = read_together(&self.connections, "position", &reads).await?;
            // A number is that of one entry, ever; a name may be that of a later one by now.
            let is_there =
                |other: &Blocker| pairs.iter().any(|pair| pair.create_index == other.seq);
            let gone = batch.iter().filter(|other| !is_there(other)).map(|other| other.seq);
            self.crowds.gone(queue, gone);
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
