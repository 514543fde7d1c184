//! `etcd://host:2379/namespace`: many hosts, over etcd's v3 API.
//!
//! # How it works
//!
//! A session is an etcd lease, with a key for its member id. An entry is a key under the session's lease,
//! `<namespace>/lock/<name>/<lease>`; its create revision is its sequence number and its fencing
//! token. One transaction puts it and reads the newest key before it, so an uncontended lock costs one
//! request, and one more to release. A waiter watches the entry that blocks it from now on, then reads
//! it once: a watch that starts at an older revision is served by a loop that runs every 100 ms only
//! (`syncWatchersLoop` in etcd's `mvcc`), which is why etcd's own lock hands over slowly. All watches
//! share one stream, and stay for a moment: where the blocker's key is watched already from before
//! it was put, nothing can have been missed, and the read is spared.
//!
//! The key of a shared entry has an `r` before the lease, so that it finds the newest exclusive entry in
//! a range of its own. What an entry says beyond that is in its value, which an update puts anew: one
//! that was downgraded keeps its key and says `"shared":true`. A queue's value is the key
//! `<prefix>/!`, under no lease, written on condition of its modification revision, which is its version.
//! Observers of a queue share a watch on its prefix, and read it once for each message.
//!
//! `etcdctl lock <namespace>/lock/<name>` and Go's `concurrency.Mutex` on that prefix exclude us and
//! are excluded: they put `<prefix>/<lease>` and wait for older keys under the prefix, whatever follows.
//! So a queue that they share must have no value: they would wait for its key.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. A
//! crashed holder is followed within its lease and a second. Before 3.4.31 and 3.5.13 a leader
//! that was paused may end leases early (etcd-io/etcd#15247); every holder watches its own key, so it learns
//! of it at once, and fencing covers the rest. After loss of all data tokens start again from 1.
//!
//! # Requirements
//!
//! etcd 3.4 or newer. A role with read and write permission on the prefix `<namespace>/`. Building needs
//! `protoc`.
//!
//! # URL options
//!
//! `etcds://` is TLS; `etcd3+http` and `etcd3+https` are Tooz's names for the two. Several hosts are
//! endpoints of one cluster, tried in random order. The path is the namespace.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod admission;
mod client;
mod config;
mod entries;
mod entry;
mod error;
#[cfg(test)]
mod fuzz;
mod keys;
mod reads;
mod session;
mod values;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, Error as EtcdError, GetOptions, GetResponse, KeyValue, PutOptions,
    ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use self::admission::Admissions;
use self::client::{Connections, early_expiry};
pub(crate) use self::config::{Config, OPTIONS};
use self::entry::{blocker_of, entry_of, number, revision_of, seq_of};
use self::keys::{Keys, Range};
use self::reads::Reads;
use self::session::{Sessions, lease_of};
use self::watch::Watches;
use super::slots::Slots;
use super::stored::{StoredEntry, check_name};
use super::unanswered::Unanswered;
use super::{
    Backend, Blocker, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position, SessionId,
    Write,
};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{self, QueueKey};

/// How large an answer may be. The client by itself takes 4 MiB, and a thousand full entries are more.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// The backend: a namespace of a cluster.
pub(crate) struct Etcd {
    connections: Arc<Connections>,
    sessions: Sessions,
    admissions: Arc<Admissions>,
    watches: Watches,
    slots: Arc<Slots>,
    reads: Reads,
    unanswered: Unanswered,
    namespace: String,
    early_expiry: Option<&'static str>,
    /// How long one read may take within a wait.
    patience: Duration,
}

impl Etcd {
    /// Connects, and asks which version answers.
    pub(crate) async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = settings.heartbeat.min(settings.ttl / 6);
        let connections = Arc::new(Connections::new(&config, settings, patience));
        let status = connections.greet().await;
        let status = status.map_err(|error| error.at(&connections.shown()))?;
        Ok(Self {
            watches: Watches::new(Arc::clone(&connections)),
            connections,
            sessions: Sessions::default(),
            admissions: Arc::default(),
            // The lowest are used again at once: every key in the index costs something.
            slots: Arc::new(Slots::new(keys::name_of, 1)),
            reads: Reads::default(),
            unanswered: Unanswered::default(),
            namespace: settings.namespace.clone(),
            early_expiry: early_expiry(status.version()),
            patience,
        })
    }

    fn keys(&self, queue: &QueueKey) -> Keys {
        Keys::new(format!("{}/{}/{}/", self.namespace, queue.kind(), queue.encoded()))
    }

    fn key(&self, entry: &EntryRef) -> String {
        self.keys(&entry.queue).entry(&self.slots.name(entry))
    }

    async fn get(
        &self,
        operation: &'static str,
        key: &str,
        options: GetOptions,
    ) -> Result<GetResponse> {
        let reading = self.connections.call(operation, |client| async move {
            let mut kv = client.kv_client().max_decoding_message_size(LONGEST_ANSWER);
            kv.get(key, Some(options)).await
        });
        reading.await
    }

    async fn transact(&self, operation: &'static str, transaction: Txn) -> Result<TxnResponse> {
        let done = self.connections.call(operation, |client| async move {
            client.kv_client().max_decoding_message_size(LONGEST_ANSWER).txn(transaction).await
        });
        done.await
    }

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

#[async_trait]
impl Backend for Etcd {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: self.loss_detection(),
            survives_restart: Durability::Yes,
            survives_power_loss: Durability::Yes,
            survives_failover: Durability::Yes,
            fifo: true,
            fencing_survives_data_loss: false,
            early_expiry: self.early_expiry,
            max_plain_name: 200,
            min_ttl: Some(Duration::from_secs(1)),
        }
    }

    fn loss_detection(&self) -> LossDetection {
        LossDetection::Watch
    }

    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let member_key = format!("{}/member/{}", self.namespace, key::encode(&session.member));
        let (granted, revision) =
            self.sessions.open(&self.connections, session, &member_key).await?;
        self.admissions.note(session.id, &member_key, revision);
        Ok(Some(granted))
    }

    async fn renew(&self, session: SessionId, _held: &[EntryRef]) -> Result<Vec<EntryId>> {
        self.sessions.renew(&self.connections, session).await.map(|()| Vec::new())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.sessions.close(&self.connections, session).await?;
        self.slots.forget(session);
        self.admissions.forget(session);
        Ok(())
    }

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

    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        self.wait_gone(entry, seq, waiter, recheck).await
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
                listing.value = Some(values::value_of(kv)?);
            } else {
                listing.entries.extend(entry_of(kv, &keys));
            }
        }
        listing.revision = self.reads.note(queue, answer.kvs(), revision_in(answer.header()));
        Ok(listing)
    }

    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.write_value(write).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        self.wait_changed(queue, revision, recheck).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        self.names_of_values(kind).await
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        self.names_of_queues(kind).await
    }
}

/// Whether the key is this entry's own, under its session's lease.
fn is_own(kv: &KeyValue, entry: &NewEntry, seq: u64) -> bool {
    seq_of(kv) == seq && kv.lease() == lease_of(entry.session)
}

/// The revision of the store as of an answer; for a change, the one that it made.
fn revision_in(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

/// Removes a key: only the one with this create revision, if one is given.
async fn delete(client: Arc<Client>, key: String, only: Option<u64>) -> Result<(), EtcdError> {
    let Some(seq) = only else { return client.kv_client().delete(key, None).await.map(drop) };
    let same = Compare::create_revision(key.as_str(), CompareOp::Equal, revision_of(seq));
    let delete = Txn::new().when([same]).and_then([TxnOp::delete(key, None)]);
    client.kv_client().txn(delete).await.map(drop)
}

/// What the `nth` read of a transaction found.
fn found(answer: &TxnResponse, nth: usize) -> Vec<KeyValue> {
    let mut reads = answer.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(mut found) => Some(found.take_kvs()),
        _ => None,
    });
    reads.nth(nth).unwrap_or_default()
}
