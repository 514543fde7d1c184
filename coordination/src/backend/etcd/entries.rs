//! Entries: keys under their session's lease, in the order in which they were created.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, Error as EtcdError, GetOptions, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp,
};

use super::entry::{blocker_of, entry_of, number, revision_of, seq_of};
use super::keys::{Keys, Range, queue_of_entry};
use super::session::lease_of;
use super::values::value_of;
use super::{Etcd, found, revision_in};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, check_name, queue_name};
use crate::backend::{Blocker, Entries, EntryRef, Listing, Mode, NewEntry, Position, SessionId};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{self, QueueKey};

/// How many queues are asked for their names in one transaction: etcd takes 128.
const BATCH: usize = 32;
/// How many entries of a queue are read for its name; 0: all, where the first is another library's.
const LIMITS: [i64; 2] = [1, 0];

#[async_trait]
impl Entries for Etcd {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let put = PutOptions::new().with_lease(lease_of(entry.session));
        let removed = || Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again");
        // Again where calls of other entries were in doubt meanwhile, which has ended the admission.
        for _ in 0..2 {
            let admission = self.admissions.of(entry.session)?;
            let own = self.slots.sent(entry);
            let key = self.keys(&entry.place.queue).entry(&own.name);
            let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
            let (range, options) = self.before(entry);
            let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
            let enter = Txn::new()
                .when([absent, admission.holds()])
                .and_then([
                    TxnOp::put(key.as_str(), value, Some(put.clone())),
                    // An exclusive one is the newest of them itself.
                    range.get(options.with_limit(2)),
                ])
                // Nothing else: that keeps the request within one frame.
                .or_else([]);
            let answer = self
                .connections
                .call("enter", |client| async move { client.kv_client().txn(enter).await })
                .await;
            if !answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
                self.slots.answered(&entry.place);
            }
            let answer = answer?;
            if answer.succeeded() {
                let seq = number(revision_in(answer.header()));
                let blocker = self.blocker(entry, seq, &found(&answer, 0), 2).await?;
                return Ok(Position { seq, blocker });
            }
            let own = TxnOp::get(key.as_str(), Some(GetOptions::new().with_keys_only()));
            let look = Txn::new().and_then([own, admission.read()]);
            let answer = self.transact("enter", look).await?;
            if let Some(own) = found(&answer, 0).first() {
                // An earlier call got through, and its answer was lost.
                return self.position(entry, seq_of(own)).await?.ok_or_else(removed);
            }
            self.admissions.learn(&admission, found(&answer, 1).first())?;
        }
        Err(removed())
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let place = &entry.place;
        let Some(own) = self.slots.own(place) else { return Ok(false) };
        if own.mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // Its key is where shared entries do not look; and others may hold beside it.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let key = self.key(place);
        let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        let mut known = own.updated.unwrap_or(seq);
        // An update before may have had its effect without our knowledge: once more, then.
        for _ in 0..2 {
            let put = PutOptions::new().with_lease(lease_of(entry.session));
            let update = Txn::new()
                // No other entry has it, and neither has this one when another update was later.
                .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, revision_of(known))])
                .and_then([TxnOp::put(key.as_str(), value.as_slice(), Some(put))])
                .or_else([TxnOp::get(key.as_str(), None)]);
            let answer = self.transact("update", update).await?;
            if answer.succeeded() {
                self.slots.updated(place, number(revision_in(answer.header())), entry.mode);
                return Ok(true);
            }
            let current = found(&answer, 0);
            let Some(own) = current.iter().find(|kv| is_own(kv, entry, seq)) else {
                return Ok(false);
            };
            known = number(own.mod_revision());
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
        let Some(session) = self.slots.in_doubt(entry) else {
            // Of one that is none of ours, or not any longer, there is nothing without a number.
            let only = match (self.slots.delete(entry), seq) {
                (true, _) => None,
                (false, Some(seq)) => Some(seq),
                (false, None) => return Ok(()),
            };
            self.connections.call("leave", |client| delete(client, key, only)).await?;
            self.slots.free(entry);
            return Ok(());
        };
        let remove = Some(TxnOp::delete(key.as_str(), None));
        match self.admissions.admit_anew(&self.connections, "leave", session, remove).await {
            Ok(()) => self.slots.free(entry),
            Err(error) if error.kind() == ErrorKind::Quota => {
                // A delete needs no room. The rest follows when there is some; until then calls that put
                // something are refused, whenever they come.
                self.slots.delete(entry);
                self.connections.call("leave", |client| delete(client, key.clone(), None)).await?;
                self.remove_later(entry.clone(), session, key);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let (range, options) = self.before(entry);
        let last = revision_of(seq).saturating_sub(1);
        // Where the newest was downgraded, the next one tells whether there are more.
        let limit = if entry.mode == Mode::Shared { 2 } else { 1 };
        let look = Txn::new().and_then([
            TxnOp::get(self.key(&entry.place), Some(GetOptions::new().with_keys_only())),
            range.get(options.with_limit(limit).with_max_create_revision(last)),
        ]);
        let answer = self.transact("position", look).await?;
        if !found(&answer, 0).iter().any(|kv| is_own(kv, entry, seq)) {
            return Ok(None);
        }
        let blocker = self.blocker(entry, seq, &found(&answer, 1), limit).await?;
        Ok(Some(Position { seq, blocker }))
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let keys = self.keys(queue);
        let all = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let answer = self.get("list", keys.prefix(), all).await?;
        let mut listing = Listing::default();
        let listed = answer.kvs().iter().filter(|kv| !keys.is_removed(kv.key()));
        for kv in listed {
            check_name(queue, kv.value())?;
            if keys.is_value(kv.key()) {
                listing.value = Some(value_of(kv)?);
            } else {
                listing.entries.extend(entry_of(kv, &keys));
            }
        }
        // The newest of the queue's keys does not tell of a deletion: all of them count.
        listing.revision =
            reads::revision_of(answer.kvs().iter().map(|kv| (kv.key(), kv.mod_revision())));
        self.reads.note(queue, listing.revision, revision_in(answer.header()));
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get("list", &prefix, all).await?;
        let queues = answer.kvs().iter().filter_map(|kv| queue_of_entry(kv.key(), &prefix));
        let queues: BTreeSet<_> = queues.collect();
        let (mut hashed, plain): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|queue| key::is_hashed(queue));
        let mut names: Vec<_> =
            plain.into_iter().filter_map(|queue| queue_name(queue, b"")).collect();
        for limit in LIMITS {
            let mut unknown = Vec::new();
            for batch in hashed.chunks(BATCH) {
                let entries = |queue: &&str| Keys::new(format!("{prefix}{queue}/")).entries();
                let options = GetOptions::new().with_limit(limit);
                let read = |queue| entries(queue).get(options.clone());
                let reads: Vec<_> = batch.iter().map(read).collect();
                let answer = self.transact("list", Txn::new().and_then(reads)).await?;
                for (nth, queue) in batch.iter().enumerate() {
                    let entries = found(&answer, nth);
                    let name = entries.iter().find_map(|kv| queue_name(queue, kv.value()));
                    // One that became empty meanwhile has none.
                    unknown.extend((name.is_none() && !entries.is_empty()).then_some(*queue));
                    names.extend(name);
                }
            }
            hashed = unknown;
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl Etcd {
    /// Keeps an entry's key from being used again until its admission has ended.
    fn remove_later(&self, entry: EntryRef, session: SessionId, key: String) {
        let (connections, slots) = (Arc::clone(&self.connections), Arc::clone(&self.slots));
        let (admissions, pause) = (Arc::downgrade(&self.admissions), self.patience);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                // Gone with the coordinator.
                let Some(admissions) = admissions.upgrade() else { return };
                let remove = Some(TxnOp::delete(key.as_str(), None));
                let removing = admissions.admit_anew(&connections, "leave", session, remove);
                match tokio::time::timeout(2 * pause, removing).await {
                    Ok(Ok(())) => return slots.free(&entry),
                    Ok(Err(error)) if error.loss_reason().is_some() => return,
                    Ok(Err(_)) | Err(_) => {}
                }
            }
        });
    }

    /// Where an entry that may block this one is looked for: the newest first.
    ///
    /// Any blocks an exclusive one, so keys are enough, except where a name has to be compared. What a
    /// shared one minds may have been downgraded, which its value tells.
    fn before(&self, entry: &NewEntry) -> (Range, GetOptions) {
        let queue = &entry.place.queue;
        let newest = GetOptions::new().with_sort(SortTarget::Create, SortOrder::Descend);
        match entry.mode {
            Mode::Exclusive if queue.is_hashed() => (self.keys(queue).entries(), newest),
            Mode::Exclusive => (self.keys(queue).entries(), newest.with_keys_only()),
            Mode::Shared => (self.keys(queue).exclusive(), newest),
        }
    }

    /// What blocks the entry, by the newest keys that may, of which at most `limit` were read.
    async fn blocker(
        &self,
        entry: &NewEntry,
        seq: u64,
        newest: &[KeyValue],
        limit: i64,
    ) -> Result<Option<Blocker>> {
        let before: Vec<_> = newest.iter().filter(|kv| seq_of(kv) < seq).collect();
        let found = self.first_blocker(entry, before.iter().copied())?;
        match before.last() {
            Some(last) if found.is_none() && newest.len() as i64 >= limit => {
                // All were downgraded, and there may be more. They held at that moment, so that nothing
                // else that is exclusive was before them: what is read here is short.
                let (range, options) = self.before(entry);
                let options = options.with_max_create_revision(last.create_revision() - 1);
                let older = self.get("position", &range.from, options.with_range(range.to)).await?;
                self.first_blocker(entry, older.kvs())
            }
            _ => Ok(found),
        }
    }

    fn first_blocker<'a>(
        &self,
        entry: &NewEntry,
        kvs: impl IntoIterator<Item = &'a KeyValue>,
    ) -> Result<Option<Blocker>> {
        let queue = &entry.place.queue;
        let keys = self.keys(queue);
        for kv in kvs {
            check_name(queue, kv.value())?;
            if let Some(blocker) = blocker_of(kv, &keys, entry.mode)? {
                return Ok(Some(blocker));
            }
        }
        Ok(None)
    }
}

/// Whether the key is this entry's own, under its session's lease.
fn is_own(kv: &KeyValue, entry: &NewEntry, seq: u64) -> bool {
    seq_of(kv) == seq && kv.lease() == lease_of(entry.session)
}

/// Removes a key: only the one with this create revision, if one is given.
async fn delete(client: Arc<Client>, key: String, only: Option<u64>) -> Result<(), EtcdError> {
    let Some(seq) = only else { return client.kv_client().delete(key, None).await.map(drop) };
    let same = Compare::create_revision(key.as_str(), CompareOp::Equal, revision_of(seq));
    let delete = Txn::new().when([same]).and_then([TxnOp::delete(key, None)]);
    client.kv_client().txn(delete).await.map(drop)
}
