//! Entries: keys that a session has locked.
//!
//! # The protocol
//!
//! Which entry blocks which, and what a holder does when its lease ends, is the same on all stores: see `backend/mod.rs`.
//!
//! `enter` is one transaction. `<own>` is the entry's key, `<queue>/<session id>-<number>`; the key pool (`key_pool.rs`) gives each
//! number to one entry of the session at a time. `<member's key>` is the key that the session has locked for its member id, and V
//! is the newest `ModifyIndex` of that key that this process knows:
//!
//! ```text
//! check-index      <member's key>  index = V     (1)
//! check-not-exists <own>                         (2)
//! check-not-exists <queue>/.closing              (3)
//! lock             <own>  session, value         (4)
//! get-tree         <queue>/                      (5)
//! ```
//!
//! 1. The write fence, see `write_fence.rs` of `txn_kv`: it refuses a call that was given up and that reaches Consul only after
//!    `leave`. Without this condition the late call would lock a key that nobody deletes. If a call that was not given up is
//!    refused because of (1), the member's key is read, and the call is sent again with its index.
//! 2. An earlier call may have locked the key although its answer was lost. Then the key that exists is this entry, because no
//!    other session uses the key. It is not locked a second time: the queue is read, which shows the entry's number and its
//!    blocker.
//! 3. `.closing` exists while some client writes the queue's value on condition that there is no entry. Consul has no condition on
//!    a range of keys. So that writer puts `.closing`, finds that there is no entry, and writes on condition that `.closing` is
//!    unchanged. If this `enter` is refused because of `.closing`, its next try has `delete <queue>/.closing` in this place, so
//!    that the writer's condition fails.
//! 4. Consul deletes the key when the session ends. With a lock-delay, Consul only unlocks it: the key stays and blocks the entries
//!    behind it, until the delay is over and a client deletes it (`lock_delayed.rs`). The key's `CreateIndex` is the entry's
//!    sequence number.
//! 5. The read shows the queue as it is right after the `lock`. The newest key that was created before ours and blocks us is the
//!    blocker; if there is none, the lock is ours. (If an entry was downgraded to shared, the value of its key says so.) In a long
//!    queue in which this session has an earlier exclusive entry, only `<own>` is read: that earlier entry is returned as the
//!    blocker, although a newer one may be between the two. When it is gone, `position` reads the whole queue.
//!
//! `leave` is `delete <own>`, without a condition. The key pool gives the key to another entry only after the delete was answered;
//! and if an earlier delete of the key was not answered, never in this session. So a late delete removes no newer entry. But if a
//! call that locks `<own>` was given up and may still arrive, `leave` ends the write fence first:
//!
//! ```text
//! check-index      <member's key>  index = V
//! lock             <member's key>  session, value, flags = a new number
//! delete           <own>
//! ```
//!
//! A `lock` that leaves a key's value, flags and session as they are does not raise its `ModifyIndex`. That is why this `lock`
//! writes a new number into the flags: the `ModifyIndex` of the member's key rises, and from then on (1) refuses the late call.
//!
//! If Consul refuses this transaction, the member's key is read. If our session still has locked it, an earlier call has ended this
//! write fence already, so (1) refuses the late call, and `delete <own>` follows as above. Otherwise the session is over, and
//! `<own>` ends with it: `leave` fails with `Lost`, and nothing is left to do. If Consul refuses the `lock` because its disk is
//! full, see `leaving.rs` of `txn_kv`.
//!
//! For an entry of another client, `leave` is the transaction `check-index <key>`, `delete <key>`. If the key has changed since it
//! was read, the transaction is repeated with the key's new `ModifyIndex`, as long as the key's `CreateIndex` is that entry's
//! number.
//!
//! `position` reads the queue, in Consul's consistent mode. Our own key must exist, with our session and our `CreateIndex`, or else
//! our entry is gone. The blocker is found as in (5). Keys that are older than ours can only go, and none can come. So if this
//! process has read the whole of a long queue since our entry was entered, it knows all keys before ours, and reads only our own
//! key and those of them that may still exist (`long_queue.rs`).
//!
//! `update` is `check-index <own> index = last`, `lock <own>` with the new value, where `last` is the key's `ModifyIndex` after the
//! last write: so an update that arrives after a later one has no effect. As above, the flags get a new number, so that the
//! `ModifyIndex` rises. If the condition fails, `<own>` is read. If it has our new text, an earlier try has made the update; if it
//! is still our entry, the update is tried once more with the index that was read.

use async_trait::async_trait;

use super::Consul;
use super::client::Agents;
use super::entry::{blocker_in, check_pair, entry_of};
use super::keys::{CLOSING, VALUE};
use super::kv::{
    BATCH, Operation, Outcome, Pair, Refusal, read_all, read_together, read_together_on,
};
use super::txn::{check, kept};
use super::values::value_of;
use crate::backend::server::connections::Ready;
use crate::backend::server::reads;
use crate::backend::server::txn_kv::{Attempt, Enter, Entered, Keys, Left, is_there};
use crate::backend::{Blocker, Cursor, Entries, EntryRef, Listing, Mode, NewEntry, Page, Position};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Consul {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        self.txn_kv.enter(entry, Entering::new(self, entry)).await
    }

    fn was_sent(&self, entry: &EntryRef) -> bool {
        self.txn_kv.key_pool.own(entry).is_some()
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        if entry.mode == Mode::Shared {
            // The downgrade is noted before the update is sent, because the answer may be lost. From now on, later entries of
            // this session do not take this entry for their blocker without reading the queue.
            self.long_queues.downgraded(&entry.entry_ref.queue, seq);
        }
        self.txn_kv.update(entry, seq).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.txn_kv.key(entry);
        let left = self.txn_kv.leave(entry, seq).await;
        if left.as_ref().is_err_and(|error| error.loss_reason().is_none()) {
            return left.map(drop);
        }
        // `leave` has deleted the entry's key, or the session is over: in both cases the entry is gone.
        self.long_queues.gone(&entry.queue, seq);
        // Waiters in this process are woken before the key may be used again. Otherwise they could take the next entry with this
        // key for the entry that has left.
        self.watches.tell_gone(&key, seq);
        if !matches!(left, Ok(Left::InDoubt)) {
            self.txn_kv.key_pool.free(entry);
        }
        left.map(drop)
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let pairs = match self.long_queues.before(&entry.entry_ref.queue, seq) {
            Some(before) => self.look_before(entry, &before).await?,
            None => self.look("position", &entry.entry_ref.queue).await?,
        };
        self.place(entry, Some(seq), &pairs)
    }

    async fn is_there(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let session = self.txn_kv.store.id("watch", entry.session)?;
        let key = self.txn_kv.key(&entry.entry_ref);
        let ready = self.connections.ready_soon("watch").await?;
        let pairs = read_together_on(ready, &[Operation::read(&*key)]).await?;
        let is_own = |pair: &Pair| pair.key == key && pair.create_index == seq;
        Ok(pairs.iter().any(|pair| is_own(pair) && pair.is_of(&session)))
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
        // The listing's revision is a hash of what is listed. Consul's index cannot be the revision: if a queue is empty, Consul
        // answers with an index that rises whenever any other key changes.
        let listed = listed.iter().map(|pair| (&pair.key, pair.modify_index, pair.is_locked()));
        listing.revision = reads::revision_of(listed);
        self.reads.note(queue, listing.revision, index);
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.txn_kv.queues(kind, from).await
    }
}

/// One call of `enter` for this entry.
struct Entering<'a> {
    consul: &'a Consul,
    entry: &'a NewEntry,
    keys: Keys,
    /// The operation about the key `.closing`, which exists while some client writes the value on condition of an empty queue.
    /// Most often there is no such writer, so in the first try this is the condition that the key is absent. If that try is
    /// refused because of `.closing`, this becomes the deletion of the key, so that the writer's condition fails.
    not_closing: Operation<'static>,
    /// An earlier exclusive entry of this session in a long queue. It blocks this entry, so the queue is not read. `None`: no
    /// such entry is known, and the queue is read.
    in_the_way: Option<Blocker>,
}

impl<'a> Entering<'a> {
    fn new(consul: &'a Consul, entry: &'a NewEntry) -> Self {
        let keys = consul.txn_kv.keys(&entry.entry_ref.queue);
        let not_closing = Operation::is_absent(keys.key(CLOSING));
        Self { consul, entry, keys, not_closing, in_the_way: None }
    }

    fn entered(&self, attempt: &Attempt, pairs: &[Pair]) -> Result<Entered> {
        let (consul, queue) = (self.consul, &self.entry.entry_ref.queue);
        let key = consul.txn_kv.key(&self.entry.entry_ref);
        let pairs = &read_of(pairs, &self.keys, &key);
        let position = consul.place(self.entry, None, pairs).map_err(is_there)?;
        let position = position.ok_or_else(removed)?;
        if self.in_the_way.is_none() {
            consul.long_queues.read(queue, &self.keys, pairs);
        }
        let entered = (&*attempt.name, position.seq);
        consul.long_queues.entered(queue, entered, self.entry.mode);
        let blocker = self.in_the_way.clone().or(position.blocker);
        Ok(Entered::At(Position { blocker, ..position }))
    }
}

/// Of the pairs in an answer, those that the transaction's last operation, the read of the queue, has returned. The answer begins
/// with the pairs of earlier operations, and this function removes them: the member's key, which has another prefix, and the
/// entry's own key as the `lock` returned it, without its value. The own key's second pair, which the read returned, is kept.
fn read_of(pairs: &[Pair], keys: &Keys, own: &str) -> Vec<Pair> {
    let written = pairs.iter().position(|pair| pair.key == own);
    let others = pairs.iter().enumerate().filter(|(nth, _)| Some(*nth) != written);
    let is_of_queue = |pair: &&Pair| keys.name(&pair.key).is_some();
    others.map(|(_, pair)| pair).filter(is_of_queue).cloned().collect()
}

/// The operations of the transaction of `enter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    FenceHolds,
    KeyIsAbsent,
    NotClosing,
    Lock,
    Read,
}

impl Step {
    /// The operations in the order in which they are sent. If Consul refuses one, its answer has the index of that operation in
    /// this order.
    const ALL: [Self; 5] =
        [Self::FenceHolds, Self::KeyIsAbsent, Self::NotClosing, Self::Lock, Self::Read];

    fn refused(refusal: &Refusal) -> Option<Self> {
        Self::ALL.get(refusal.nth).copied()
    }
}

impl<'a> Enter for Entering<'a> {
    type Ready = Ready<'a, Agents>;
    type Answer = Outcome;

    async fn ready(&self) -> Result<Self::Ready> {
        self.consul.connections.ready("enter").await
    }

    async fn send(&mut self, ready: Self::Ready, attempt: &Attempt) -> Result<Outcome> {
        let store = &self.consul.txn_kv.store;
        let id = store.id("enter", self.entry.session)?;
        self.in_the_way = self.consul.in_the_way(self.entry);
        let key = attempt.key.as_str();
        let seen = if self.in_the_way.is_some() { key } else { self.keys.prefix() };
        let enter = Step::ALL.map(|step| match step {
            Step::FenceHolds => check(attempt.write_fence.holds()),
            Step::KeyIsAbsent => Operation::is_absent(key),
            Step::NotClosing => self.not_closing.clone(),
            Step::Lock => Operation::lock(key, &attempt.value, &*id),
            Step::Read => Operation::read(seen),
        });
        store.make_on(ready, &enter).await
    }

    async fn understand(&mut self, attempt: &Attempt, answer: Outcome) -> Result<Entered> {
        let consul = self.consul;
        let refusal = match answer {
            Outcome::Done(pairs) => return self.entered(attempt, &pairs),
            Outcome::Refused(refusal) => refusal,
        };
        match Step::refused(&refusal) {
            Some(Step::FenceHolds) => {
                let fence = &attempt.write_fence.key;
                let found = read_all(&consul.connections, "enter", fence).await?.0;
                let own = found.iter().find(|pair| *pair.key == **fence);
                Ok(Entered::Fenced(own.map(kept)))
            }
            // An earlier call has locked the key, and its answer was lost: the entry exists, and its position is read.
            Some(Step::KeyIsAbsent) => {
                let pairs = consul.look("enter", &self.entry.entry_ref.queue).await;
                let position = consul.place(self.entry, None, &pairs.map_err(is_there)?);
                position.map_err(is_there)?.map(Entered::At).ok_or_else(removed)
            }
            Some(Step::NotClosing) => {
                self.not_closing = Operation::delete(self.keys.key(CLOSING));
                Ok(Entered::Again)
            }
            Some(Step::Lock | Step::Read) | None => {
                Err(Error::new(ErrorKind::Unavailable, "enter", refusal.message))
            }
        }
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again")
}

impl Consul {
    /// The entry's position, computed from `pairs`, the keys of its queue that were read. `None`: the entry's key is not there,
    /// is not locked by the entry's session, or has another number than `seq`.
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

    /// An earlier exclusive entry of the same session in a long queue. It blocks this entry, so the queue need not be read.
    /// `None`: no such entry is known.
    fn in_the_way(&self, entry: &NewEntry) -> Option<Blocker> {
        let last = self.long_queues.last(&entry.entry_ref.queue)?;
        last.id.is_of(entry.session).then_some(last)
    }

    /// For a long queue: reads the entry's own key and the keys of the entries in `before`, the newest first, in batches. Stops as
    /// soon as it is clear that the entry is gone, or, if the entry is exclusive, that it is blocked.
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
            // The entries are compared by number, because a later entry may have the same key by now.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_of_a_queue_is_found_by_its_key() {
        let pair = |key: &str, create_index| {
            let mut pair = Pair::default();
            (pair.key, pair.create_index) = (key.to_owned(), create_index);
            pair
        };
        let keys = Keys::new("ns/lock/a/".to_owned());
        let (fence, own) = (pair("ns/member/m", 1), pair("ns/lock/a/own", 7));
        let (other, value) = (pair("ns/lock/a/other", 3), pair("ns/lock/a/.value", 2));
        let answer = [fence, own.clone(), other.clone(), own.clone(), value.clone()];
        assert_eq!(read_of(&answer, &keys, &own.key), [other, own.clone(), value]);
        // In a long queue the transaction reads only the entry's own key.
        assert_eq!(read_of(&[own.clone(), own.clone()], &keys, &own.key), [own]);
    }

    #[test]
    fn a_refusal_names_its_step() {
        for (nth, step) in Step::ALL.into_iter().enumerate() {
            let refusal = Refusal { nth, message: String::new() };
            assert_eq!(Step::refused(&refusal), Some(step));
        }
        assert_eq!(Step::refused(&Refusal { nth: 5, message: String::new() }), None);
    }
}
