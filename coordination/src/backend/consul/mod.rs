//! `consul://host:8500/namespace`: many hosts, over Consul's HTTP interface.
//!
//! # How it works
//!
//! A session is one of Consul's, with a key for its member id. An entry is a key locked by the session,
//! `<namespace>/lock/<name>/<entry>`, which Consul deletes with the session; the index of Consul's log by which it
//! was created is its sequence number and its fencing token. One transaction locks it and reads the queue, so an
//! uncontended lock costs one request, and one more to release. A waiter asks for the key of the entry that blocks
//! it in a blocking query, which is answered when that key changes, then reads the queue once.
//!
//! Each blocking query has a connection for itself, and Consul allows 200 of one address. So a process has a handful
//! of them; who waits beyond that shares one over the names of all keys of the namespace.
//!
//! A queue's value is the key `<prefix>/.value`, locked by nobody, written on condition of its modification index,
//! which is its version. To write it only while there is no entry, a key `.closing` is put first, which every `enter`
//! removes. What creates a key does it on condition of its member's key, which is put anew when a call was given
//! up and could arrive late: that has no effect then.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. Consul ends
//! a session between one and two leases after its last heartbeat, so a crashed holder is followed within two leases.
//! Sessions have no health check: only their lease, or an operator, ends them. They belong to the agent that was
//! connected to, and end when that leaves the cluster; a server that is thought dead is made to, unless
//! `autopilot.cleanup_dead_servers` is off. After loss of all data tokens start again from 1.
//!
//! `consul lock` is another protocol: its key `.lock` may stand among ours, and neither minds the other.
//!
//! # Requirements
//!
//! Consul 1.8 or newer. A lease is not shorter than the servers' `session_ttl_min`, 10 s by default. With ACLs: write
//! for `key_prefix "<namespace>/"` and `session_prefix ""`, and read for `agent_prefix ""` if the
//! characteristics are to be known.
//!
//! # URL options
//!
//! `consul+https://` is TLS. Several hosts are agents of one datacenter, tried in random order. The path is the
//! namespace.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `token_file`: a file with the ACL token, instead of the URL's password: `consul://:token@host`.
//! * `dc`: the datacenter, if it is not the agent's own.
//! * `lock_delay`: how long what a session had is kept from others when it was ended by force, 0 to 60 s. Default: 0.

mod agent;
mod client;
mod config;
mod crowd;
mod entries;
mod entry;
mod error;
#[cfg(test)]
mod fuzz;
mod keys;
mod kv;
mod leftover;
mod reads;
mod session;
mod values;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::agent::Agent;
use self::client::Connections;
pub(crate) use self::config::{Config, OPTIONS};
use self::crowd::Crowds;
use self::entry::{blocker_in, check_pair, entry_of};
use self::keys::Keys;
use self::kv::{Operation, Outcome, Pair, Refusal, delete, read_all, read_together, transact};
use self::leftover::Leftovers;
use self::reads::Reads;
use self::session::Sessions;
use self::values::value_of;
use self::watch::Watches;
use super::slots::Slots;
use super::stored::StoredEntry;
use super::unanswered::Unanswered;
use super::{
    Backend, Blocker, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position, SessionId,
    Write,
};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;

const LEAVING: &str = "Consul ends the sessions of an agent that leaves the cluster, as its autopilot makes servers do \
                       that it thinks dead";
/// How often a call is made anew while calls of others are in doubt.
const TRIES: usize = 3;
/// How many keys a session's entries in a queue have in turn. Those who share a query hear of names only, some
/// milliseconds apart: a key that is used again at once would be there each time.
const KEYS_IN_TURN: usize = 16;
/// How many entries are looked for in one transaction: Consul takes 64 operations.
const BATCH: usize = 60;
/// The longest that a query waits. When its answer is lost on the way nobody notices before, and a waiter is to be
/// served within two seconds (contract L2).
const LONGEST_QUERY: Duration = Duration::from_secs(1);

/// The backend: a namespace of a datacenter.
pub(crate) struct Consul {
    connections: Arc<Connections>,
    sessions: Arc<Sessions>,
    slots: Slots,
    crowds: Crowds,
    unanswered: Unanswered,
    watches: Watches,
    reads: Reads,
    leftovers: Leftovers,
    namespace: String,
    agent: Agent,
}

impl Consul {
    /// Connects, and asks what answers.
    pub(crate) async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = settings.heartbeat.min(settings.ttl / 6);
        let connections = Arc::new(Connections::new(&config, settings, patience));
        let agent =
            Agent::greet(&connections).await.map_err(|error| error.at(&connections.shown()))?;
        let prefix = format!("{}/", settings.namespace);
        let sessions = Arc::new(Sessions::new(&prefix, config.lock_delay));
        Ok(Self {
            leftovers: Leftovers::new(
                Arc::clone(&connections),
                Arc::clone(&sessions),
                config.lock_delay,
            ),
            watches: Watches::new(
                Arc::clone(&connections),
                prefix,
                settings.ttl.min(LONGEST_QUERY),
            ),
            connections,
            sessions,
            slots: Slots::new(keys::name_of, KEYS_IN_TURN),
            crowds: Crowds::default(),
            unanswered: Unanswered::default(),
            reads: Reads::default(),
            namespace: settings.namespace.clone(),
            agent,
        })
    }

    fn keys(&self, queue: &QueueKey) -> Keys {
        Keys::new(format!("{}/{}/{}/", self.namespace, queue.kind(), queue.encoded()))
    }

    fn key(&self, entry: &EntryRef) -> String {
        self.keys(&entry.queue).entry(&self.slots.name(entry))
    }

    /// Consul's id of a session.
    fn session(&self, operation: &'static str, session: SessionId) -> Result<Arc<str>> {
        let over = || Error::lost(operation, LossReason::ExpiredByServer);
        self.sessions.id(session).ok_or_else(over)
    }

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

#[async_trait]
impl Backend for Consul {
    fn scheme(&self) -> &'static str {
        "consul"
    }

    fn characteristics(&self) -> Characteristics {
        let durable = match self.agent.is_in_memory {
            Some(true) => Durability::No,
            Some(false) => Durability::Yes,
            None => Durability::Unknown,
        };
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: self.loss_detection(),
            survives_restart: durable,
            survives_power_loss: durable,
            survives_failover: Durability::Yes,
            fifo: true,
            fencing_survives_data_loss: false,
            early_expiry: Some(LEAVING),
            max_plain_name: 200,
            min_ttl: self.agent.min_ttl,
        }
    }

    fn loss_detection(&self) -> LossDetection {
        LossDetection::Watch
    }

    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let member_key = keys::member(&self.namespace, &session.member);
        self.sessions.open(&self.connections, session, &member_key).await.map(Some)
    }

    async fn renew(&self, session: SessionId, _held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let renewed = self.sessions.renew(&self.connections, session).await;
        if renewed.as_ref().is_err_and(|error| error.loss_reason().is_some()) {
            self.sessions.is_over(session);
        }
        renewed.map(|()| Vec::new())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.sessions.is_over(session);
        self.sessions.close(&self.connections, session).await?;
        self.slots.forget(session);
        Ok(())
    }

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

    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        _recheck: Duration,
    ) -> Result<()> {
        // The queries have their own, which is shorter.
        self.wait_gone(entry, seq, waiter).await;
        Ok(())
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
        listing.revision = self.reads.note(queue, &listed, index);
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
