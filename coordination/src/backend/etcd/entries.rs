//! Entries: keys under their session's lease, in the order in which they were created.
//!
//! # The protocol
//!
//! Which entry blocks which, and what a holder does when its lease ends, is the same on all stores: see `backend/mod.rs`.
//!
//! `enter` is one transaction. `<own>` is the entry's key: `<queue>/<lease>`, where `<lease>` is the id of the session's lease, or,
//! while other entries of the session use that key, `<queue>/<lease>-1` and so on (`key_pool.rs`). If the entry is shared, an `r`
//! stands before `<lease>`. `<member's key>` is the key of the session's member id, and V is the newest revision of that key that
//! this process knows:
//!
//! ```text
//! If   mod_revision(<own>) = 0                               (1)
//!      mod_revision(<member's key>) = V                      (2)
//! Then put <own> under the session's lease                   (3)
//!      get <queue>/… the two newest by create_revision       (4)
//! Else nothing; the two keys are read by a second transaction
//! ```
//!
//! 1. An earlier call may have put the key although its answer was lost. Then the key that exists is this entry, because no other
//!    session uses the key, and the key pool gives it to one entry at a time. The key is not put again: its create revision is the
//!    entry's number, and `position` finds the blocker. A second put would keep the create revision; but if it arrived late, after
//!    an update of the entry, it would undo the update.
//! 2. The write fence, see `write_fence.rs` of `txn_kv`: it refuses a call that was given up and that reaches etcd only after
//!    `leave`. Condition (1) does not refuse such a call, because `leave` has deleted `<own>`. Without (2), the late call would put
//!    an entry that nobody removes. If (2) refuses a call that was not given up, the call is sent again with the revision that was
//!    read.
//! 3. etcd deletes the key when the lease ends. The key's create revision is the entry's sequence number.
//! 4. This read sees the queue at the revision of the put. For an exclusive entry it reads the keys of all entries: the newest is
//!    `<own>`, and the other one is the blocker. For a shared entry it reads only the keys without an `r`, a range of their own:
//!    these were entered as exclusive, and the newest whose value does not say that it was downgraded to shared is the blocker. If
//!    both keys were downgraded, a further request reads all older ones. If there is no blocker, the lock is ours.
//!
//! `leave` is `delete <own>`, without a condition. The key pool gives the key to another entry only after the delete was answered;
//! and if an earlier delete of the key was not answered, never in this session. So a late delete removes no newer entry. But if a
//! call that puts `<own>` was given up and may still arrive, `leave` ends the write fence first:
//!
//! ```text
//! If   mod_revision(<member's key>) = V
//! Then put <member's key> under the session's lease, delete <own>
//! Else get <member's key>
//! ```
//!
//! The put gives the member's key a new revision, so from then on (2) refuses the late call. If the condition fails, there are two
//! cases. If the member's key is still under our lease, an earlier call has ended this write fence already, so (2) refuses the late
//! call, and `delete <own>` follows as above. Otherwise the lease is over, and `<own>` ends with it: `leave` fails with `Lost`, and
//! nothing is left to do. If etcd has no space for the put, see `leaving.rs` of `txn_kv`.
//!
//! For an entry of another client, `leave` is `If create_revision(<key>) = number Then delete <key>`, where `number` is that
//! entry's number.
//!
//! `position` is one transaction without a condition: `get <own>`, and the read of (4) among the keys with a smaller create
//! revision than ours; for an exclusive entry one key is enough. `<own>` must be under our lease and have our create revision, or
//! else our entry is gone. All reads are linearizable: they see every change that was answered before.
//!
//! `update` is `If mod_revision(<own>) = last Then put <own> under the session's lease`, where `last` is the revision of the last
//! put: so an update that arrives after a later one has no effect. If the condition fails, `<own>` is read. If it has our new text,
//! an earlier try has made the update; if it is still our entry, the update is tried once more with the revision that was read.

use std::collections::HashSet;

use async_trait::async_trait;
use etcd_client::{
    Client, GetOptions, KeyValue, LeaseTimeToLiveOptions, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnResponse,
};

use super::Etcd;
use super::client::Endpoints;
use super::entry::{blocker_of, entry_of, lease_of, number, revision_of, seq_of};
use super::error::is_answer_too_long;
use super::keys::{REMOVED, Range, VALUE, entries, exclusive};
use super::txn::{compare, found, kept, keys_only, make_on, revision_in};
use super::values::value_of;
use crate::backend::server::connections::Ready;
use crate::backend::server::reads;
use crate::backend::server::stored::check_name;
use crate::backend::server::txn_kv::{Attempt, Condition, Enter, Entered, Left, is_there};
use crate::backend::{
    Blocker, Cursor, Entries, EntryId, EntryRef, Listing, Mode, NewEntry, Page, Position, SessionId,
};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How many bytes the keys of all held entries may have in one answer. The client crate accepts answers of 4 MiB about leases, and
/// the limit cannot be raised. The rest is for the session's entries that wait.
const LONGEST_LIST: usize = 3 * 1024 * 1024;
/// How many bytes a key takes in an answer besides its own, at most.
const AROUND_KEY: usize = 4;

#[async_trait]
impl Entries for Etcd {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        self.txn_kv.enter(entry, Entering { etcd: self, entry }).await
    }

    fn was_sent(&self, entry: &EntryRef) -> bool {
        self.txn_kv.key_pool.own(entry).is_some()
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        self.txn_kv.update(entry, seq).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        if self.txn_kv.leave(entry, seq).await? == Left::Gone {
            self.txn_kv.key_pool.free(entry);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let (range, options) = self.before(entry);
        let last = revision_of(seq).saturating_sub(1);
        // A shared entry reads the two newest keys. If the newest one was downgraded to shared, it does not block this entry, but
        // the second one may. If both were downgraded, `blocker` reads the still older keys.
        let limit = if entry.mode == Mode::Shared { 2 } else { 1 };
        let look = Txn::new().and_then([
            keys_only(&self.txn_kv.key(&entry.entry_ref)),
            range.get(options.with_limit(limit).with_max_create_revision(last)),
        ]);
        let answer = self.txn_kv.store.make("position", look).await?;
        if !found(&answer, 0).iter().any(|kv| is_own(kv, entry, seq)) {
            return Ok(None);
        }
        let blocker = self.blocker(entry, seq, &found(&answer, 1), limit).await?;
        Ok(Some(Position { seq, blocker }))
    }

    fn lists_held(&self) -> bool {
        true
    }

    /// Lists the keys of the session's lease. The leader answers from its memory, where the newest keys may be missing for a moment
    /// after another server has confirmed them.
    async fn missing(&self, session: SessionId, held: &[EntryRef]) -> Result<Option<Vec<EntryId>>> {
        let keys: Vec<_> = held.iter().map(|entry| self.txn_kv.key(entry)).collect();
        if keys.iter().map(|key| key.len() + AROUND_KEY).sum::<usize>() > LONGEST_LIST {
            return Ok(None);
        }
        let list = async |client: Client| {
            let with_keys = LeaseTimeToLiveOptions::new().with_keys();
            match client.lease_client().time_to_live(lease_of(session), Some(with_keys)).await {
                Ok(listed) => Ok(Some(listed)),
                Err(error) if is_answer_too_long(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let listing =
            self.connections.call("watch", async |connected| connected.call(list).await).await?;
        let Some(listed) = listing else { return Ok(None) };
        // If the leader does not know the lease, it answers without keys. That is no proof that the session is over: a leader that was
        // just elected may not have heard of a new lease yet.
        let there: HashSet<&[u8]> = listed.keys().iter().map(Vec::as_slice).collect();
        let missing = held.iter().zip(&keys).filter(|(_, key)| !there.contains(key.as_bytes()));
        Ok(Some(missing.map(|(entry, _)| entry.id.clone()).collect()))
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let keys = self.txn_kv.keys(queue);
        let all = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let answer = self.txn_kv.store.get("list", keys.prefix(), all).await?;
        let mut listing = Listing::default();
        for kv in answer.kvs() {
            check_name(queue, kv.value())?;
            match kv.key_str().ok().and_then(|key| keys.name(key)) {
                Some(VALUE) => listing.value = Some(value_of(kv)?),
                Some(REMOVED) => {}
                _ => listing.entries.extend(entry_of(kv, &keys)),
            }
        }
        // The listing's revision is a hash of all keys and their modification revisions. The newest modification revision alone
        // would not do, because a deletion does not raise it.
        listing.revision =
            reads::revision_of(answer.kvs().iter().map(|kv| (kv.key(), kv.mod_revision())));
        self.reads.note(queue, listing.revision, revision_in(answer.header()));
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.txn_kv.queues(kind, from).await
    }
}

/// One call of `enter` for this entry.
struct Entering<'a> {
    etcd: &'a Etcd,
    entry: &'a NewEntry,
}

impl<'a> Enter for Entering<'a> {
    type Ready = Ready<'a, Endpoints>;
    type Answer = TxnResponse;

    async fn ready(&self) -> Result<Self::Ready> {
        self.etcd.connections.ready("enter").await
    }

    async fn send(&mut self, ready: Self::Ready, attempt: &Attempt) -> Result<TxnResponse> {
        let with_session = PutOptions::new().with_lease(lease_of(self.entry.session));
        let (range, options) = self.etcd.before(self.entry);
        let absent = Condition::Version(attempt.key.clone(), 0);
        let enter = Txn::new()
            .when([absent, attempt.write_fence.holds()].map(compare))
            .and_then([
                TxnOp::put(attempt.key.as_str(), attempt.value.as_slice(), Some(with_session)),
                // Two keys are read, because for an exclusive entry the newest key in the range is its own.
                range.get(options.with_limit(2)),
            ])
            // If a condition fails, which is seldom, a second request reads both keys. This request has no reads for that case,
            // so that it fits into one frame.
            .or_else([]);
        make_on(ready, enter).await
    }

    async fn understand(&mut self, attempt: &Attempt, answer: TxnResponse) -> Result<Entered> {
        let (etcd, entry) = (self.etcd, self.entry);
        if answer.succeeded() {
            let seq = number(revision_in(answer.header()));
            let blocker = etcd.blocker(entry, seq, &found(&answer, 0), 2).await;
            return Ok(Entered::At(Position { seq, blocker: blocker.map_err(is_there)? }));
        }
        let fence = &attempt.write_fence.key;
        let look = Txn::new().and_then([keys_only(&attempt.key), keys_only(fence)]);
        let answer = etcd.txn_kv.store.make("enter", look).await?;
        let Some(own) = found(&answer, 0).into_iter().next() else {
            return Ok(Entered::Fenced(found(&answer, 1).first().map(kept)));
        };
        // An earlier call put the key, and its answer was lost: the entry exists, and its position is read.
        let position = etcd.position(entry, seq_of(&own)).await.map_err(is_there)?;
        position.map(Entered::At).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again")
        })
    }
}

impl Etcd {
    /// The range of keys that may block this entry, sorted newest first.
    ///
    /// For an exclusive entry only the keys are read, because every older entry blocks it, whatever its value says. If the
    /// queue's name is hashed, values are read too, because they have the full name. For a shared entry values are read as well:
    /// they say whether an exclusive entry was downgraded.
    fn before(&self, entry: &NewEntry) -> (Range, GetOptions) {
        let queue = &entry.entry_ref.queue;
        let keys = self.txn_kv.keys(queue);
        let newest = GetOptions::new().with_sort(SortTarget::Create, SortOrder::Descend);
        match entry.mode {
            Mode::Exclusive if queue.is_hashed() => (entries(&keys), newest),
            Mode::Exclusive => (entries(&keys), newest.with_keys_only()),
            Mode::Shared => (exclusive(&keys), newest),
        }
    }

    /// The newest entry before this one that blocks it. `newest`: the newest keys in the range of [`before`](Self::before), at
    /// most `limit` of them.
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
                // All keys that were read belong to entries that were downgraded to shared, and an older key may still block this
                // entry. So all older keys are read. They are few: an exclusive entry is downgraded only while it holds the lock,
                // and by then every exclusive entry before it is gone or downgraded too.
                let (range, options) = self.before(entry);
                let options = options.with_max_create_revision(last.create_revision() - 1);
                let older = self
                    .txn_kv
                    .store
                    .get("position", &range.from, options.with_range(range.to))
                    .await?;
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
        let queue = &entry.entry_ref.queue;
        let keys = self.txn_kv.keys(queue);
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
