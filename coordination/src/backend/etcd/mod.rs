//! `etcd://host:2379/namespace`: many hosts, over etcd's v3 API.
//!
//! # How it works
//!
//! A session is an etcd lease, with a key for its member id. An entry is a key under the session's lease,
//! `<namespace>/lock/<name>/<lease>`; its create revision is its sequence number and its fencing
//! token. One transaction puts it and reads the newest key before it, so an uncontended lock costs one
//! request, and one more to release. A waiter watches its predecessor from now on, then reads it once:
//! a watch that starts at an older revision is served by a loop that runs every 100 ms only
//! (`syncWatchersLoop` in etcd's `mvcc`), which is why etcd's own lock hands over slowly. All watches
//! share one stream, and stay for a moment: where the predecessor's key is watched already from before
//! it was put, nothing can have been missed, and the read is spared.
//!
//! `etcdctl lock <namespace>/lock/<name>` and Go's `concurrency.Mutex` on that prefix exclude us and
//! are excluded: they put `<prefix>/<lease>` and wait for older keys under the prefix, whatever follows.
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

mod client;
mod config;
mod error;
mod session;
mod slots;
mod watch;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, Error as EtcdError, GetOptions, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use serde::{Deserialize, Serialize};

use self::client::Connections;
pub(crate) use self::config::{Config, OPTIONS};
use self::session::{Sessions, lease_of};
use self::slots::Slots;
use self::watch::Watches;
use super::{
    Backend, Entry, EntryId, EntryRef, LossDetection, NewEntry, NewSession, Position, Predecessor,
    SessionId,
};
use crate::characteristics::{Characteristics, Durability, Liveness, Scope};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, QueueKey};
use crate::time::unix_micros;

/// After so many times the longest call, one that was given up has arrived or never will.
const DOUBT: u32 = 4;

/// The backend: a namespace of a cluster.
pub(crate) struct Etcd {
    connections: Arc<Connections>,
    sessions: Sessions,
    watches: Watches,
    slots: Arc<Slots>,
    namespace: String,
    early_expiry: Option<&'static str>,
    /// How long one read may take within a wait.
    patience: Duration,
}

/// What an entry's value says, for people and for the check of hashed names.
#[derive(Serialize, Deserialize)]
struct Value {
    member: String,
    since_ms: u64,
    /// The name in full, where the key has its hash only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
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
            slots: Arc::default(),
            namespace: settings.namespace.clone(),
            early_expiry: early_expiry(status.version()),
            patience,
        })
    }

    fn queue(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}/", self.namespace, queue.kind(), queue.encoded())
    }

    fn key(&self, entry: &EntryRef) -> String {
        format!("{}{}", self.queue(&entry.queue), self.slots.name(entry))
    }

    /// The number of the entry that has this key, if one has, as of the revision answered.
    async fn created(&self, operation: &'static str, key: &str) -> Result<(Option<u64>, i64)> {
        let options = GetOptions::new().with_keys_only();
        let reading = self.connections.call(operation, |client| {
            let options = options.clone();
            async move { client.kv_client().get(key, Some(options)).await }
        });
        let found = reading.await?;
        let revision = found.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((found.kvs().first().map(seq_of), revision))
    }

    fn entry_of(&self, kv: &KeyValue, prefix: &str) -> Option<Entry> {
        let id = std::str::from_utf8(kv.key()).ok()?.strip_prefix(prefix)?;
        // Other libraries write values of their own, or none.
        let value: Option<Value> = serde_json::from_slice(kv.value()).ok();
        let since_ms = value.as_ref().map(|value| value.since_ms);
        Some(Entry {
            id: EntryId::from_store(id),
            seq: seq_of(kv),
            member: value.map(|value| value.member).unwrap_or_default(),
            since: since_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
        })
    }

    /// The entry before one's own, among the newest keys of the queue.
    fn predecessor(
        &self,
        queue: &QueueKey,
        before: u64,
        kvs: &[KeyValue],
    ) -> Result<Option<Predecessor>> {
        let prefix = self.queue(queue);
        let Some(kv) = kvs.iter().find(|kv| seq_of(kv) < before) else { return Ok(None) };
        check_name(queue, kv)?;
        let entry = self.entry_of(kv, &prefix).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "read", format!("a key under {prefix} is not text"))
        })?;
        Ok(Some(Predecessor { id: entry.id, seq: entry.seq }))
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
        self.sessions.open(&self.connections, session, &member_key).await.map(Some)
    }

    async fn renew(&self, session: SessionId, _held: &[EntryRef]) -> Result<Vec<EntryId>> {
        self.sessions.renew(&self.connections, session).await.map(|()| Vec::new())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.sessions.close(&self.connections, session).await?;
        self.slots.forget(session);
        Ok(())
    }

    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let queue = &entry.place.queue;
        let key = format!("{}{}", self.queue(queue), self.slots.take(entry));
        let put = PutOptions::new().with_lease(lease_of(entry.session));
        let enter = Txn::new()
            .when([Compare::create_revision(key.as_str(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(key.as_str(), value_of(entry)?, Some(put)),
                TxnOp::get(self.queue(queue), Some(newest(queue).with_limit(2))),
            ])
            // Nothing else: that keeps the request within one frame.
            .or_else([]);
        let answer = self
            .connections
            .call("enter", |client| {
                self.slots.count(&entry.place);
                let enter = enter.clone();
                async move { client.kv_client().txn(enter).await }
            })
            .await?;
        if answer.succeeded() {
            let kvs = found(&answer, 0);
            let own = kvs.iter().find(|kv| kv.key() == key.as_bytes());
            let seq = own.map(seq_of).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "enter", "the entry is not in its own answer")
            })?;
            return Ok(Position { seq, predecessor: self.predecessor(queue, seq, &kvs)? });
        }
        // An earlier call got through, and its answer was lost.
        let removed = || Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again");
        let (seq, _) = self.created("enter", &key).await?;
        let seq = seq.ok_or_else(removed)?;
        self.position(entry, seq).await?.ok_or_else(removed)
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.key(entry);
        // The key of another's entry may be used again at any moment: delete this one only.
        let only = if self.slots.is_ours(entry) { None } else { seq };
        let deleting = self.connections.call("leave", |client| {
            self.slots.count(entry);
            delete(client, key.clone(), only)
        });
        deleting.await?;
        if !self.slots.is_in_doubt(entry) {
            self.slots.free(entry);
            return Ok(());
        }
        // A call that was given up may still reach the server, and put the entry once more: look
        // after it again before the key is used again.
        let (connections, slots) = (Arc::clone(&self.connections), Arc::clone(&self.slots));
        let (entry, doubt) = (entry.clone(), DOUBT * self.patience);
        tokio::spawn(async move {
            tokio::time::sleep(doubt).await;
            let again = connections.call("leave", |client| delete(client, key.clone(), None));
            if again.await.is_ok() {
                slots.free(&entry);
            }
        });
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let queue = &entry.place.queue;
        let before = newest(queue)
            .with_limit(1)
            .with_max_create_revision(revision_of(seq).saturating_sub(1));
        let look = Txn::new().and_then([
            TxnOp::get(self.key(&entry.place), Some(GetOptions::new().with_keys_only())),
            TxnOp::get(self.queue(queue), Some(before)),
        ]);
        let answer = self
            .connections
            .call("position", |client| {
                let look = look.clone();
                async move { client.kv_client().txn(look).await }
            })
            .await?;
        let own = found(&answer, 0);
        let is_ours = |kv: &&KeyValue| seq_of(kv) == seq && kv.lease() == lease_of(entry.session);
        if own.iter().find(is_ours).is_none() {
            return Ok(None);
        }
        let predecessor = self.predecessor(queue, seq, &found(&answer, 1))?;
        Ok(Some(Position { seq, predecessor }))
    }

    async fn entries(&self, queue: &QueueKey) -> Result<Vec<Entry>> {
        let prefix = self.queue(queue);
        let all = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let answer = self
            .connections
            .call("list", |client| {
                let (prefix, all) = (prefix.clone(), all.clone());
                async move { client.kv_client().get(prefix, Some(all)).await }
            })
            .await?;
        for kv in answer.kvs() {
            check_name(queue, kv)?;
        }
        Ok(answer.kvs().iter().filter_map(|kv| self.entry_of(kv, &prefix)).collect())
    }

    async fn gone(&self, entry: &EntryRef, seq: u64, recheck: Duration) -> Result<()> {
        let key = self.key(entry);
        let created = revision_of(seq);
        let mut broke = false;
        loop {
            let Some(mut watch) = self.watches.watch(&key).await else {
                return Err(Error::new(ErrorKind::Unavailable, "watch", "the backend is closing"));
            };
            // While there is no stream the hub paces the next try.
            let Some(since) = watch.since().await else { continue };
            // A watch that is older than the entry has missed nothing of it.
            let mut known = created;
            if broke || since >= created {
                let look = tokio::time::timeout(self.patience, self.created("watch", &key));
                let (now, revision) = look.await.unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Unavailable, "watch", "no answer in time"))
                })?;
                if now != Some(seq) {
                    return Ok(());
                }
                known = revision;
            }
            broke = true;
            loop {
                match tokio::time::timeout(recheck, watch.deleted_after(created)).await {
                    Ok(Some(())) => return Ok(()),
                    Ok(None) => break,
                    // Tells what was missed since we knew, if anything was.
                    Err(_) => match self.watches.replay(&key, known + 1).await {
                        Some(replay) => watch = replay,
                        None => break,
                    },
                }
            }
        }
    }
}

fn revision_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Removes a key: only the one with this create revision, if one is given.
async fn delete(client: Arc<Client>, key: String, only: Option<u64>) -> Result<(), EtcdError> {
    let Some(seq) = only else { return client.kv_client().delete(key, None).await.map(drop) };
    let same = Compare::create_revision(key.as_str(), CompareOp::Equal, revision_of(seq));
    let delete = Txn::new().when([same]).and_then([TxnOp::delete(key, None)]);
    client.kv_client().txn(delete).await.map(drop)
}

/// The newest entries first; with their values where a name has to be compared.
fn newest(queue: &QueueKey) -> GetOptions {
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend);
    if queue.is_hashed() { options } else { options.with_keys_only() }
}

fn seq_of(kv: &KeyValue) -> u64 {
    u64::try_from(kv.create_revision()).unwrap_or_default()
}

/// What the `nth` read of a transaction found.
fn found(answer: &TxnResponse, nth: usize) -> Vec<KeyValue> {
    let mut reads = answer.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(mut found) => Some(found.take_kvs()),
        _ => None,
    });
    reads.nth(nth).unwrap_or_default()
}

fn value_of(entry: &NewEntry) -> Result<Vec<u8>> {
    let queue = &entry.place.queue;
    let value = Value {
        member: entry.member.to_string(),
        since_ms: unix_micros() / 1000,
        name: queue.is_hashed().then(|| queue.name().to_owned()),
    };
    serde_json::to_vec(&value).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "enter", "cannot write the entry").with_source(error)
    })
}

/// Two names with one hash must not share a lock (contract S8).
fn check_name(queue: &QueueKey, kv: &KeyValue) -> Result<()> {
    if !queue.is_hashed() {
        return Ok(());
    }
    match serde_json::from_slice(kv.value()) {
        Ok(Value { name: Some(name), .. }) if name != queue.name() => {
            Err(Error::new(ErrorKind::Collision, "enter", "another name has the same hash"))
        }
        _ => Ok(()),
    }
}

/// Versions in which a leader that was paused ends leases before their time.
fn early_expiry(version: &str) -> Option<&'static str> {
    const PAUSED_LEADER: &str =
        "etcd before 3.4.31 and 3.5.13 may revoke leases early after its leader was paused";
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let mut part = || parts.next().unwrap_or_default();
    match (part(), part(), part()) {
        (3, minor, _) if minor < 4 => Some(PAUSED_LEADER),
        (3, 4, patch) if patch < 31 => Some(PAUSED_LEADER),
        (3, 5, patch) if patch < 13 => Some(PAUSED_LEADER),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_expire_early_are_known() {
        for version in ["3.3.0", "3.4.23", "3.4.30", "3.5.12"] {
            assert!(early_expiry(version).is_some(), "{version}");
        }
        for version in ["3.4.31", "3.5.13", "3.6.0", "3.7.1"] {
            assert!(early_expiry(version).is_none(), "{version}");
        }
    }
}
