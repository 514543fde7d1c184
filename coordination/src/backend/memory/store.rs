//! The shared map.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::backend::{
    Entry, EntryId, EntryRef, NewEntry, NewSession, Position, Predecessor, SessionId,
};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::time::unix_micros;

/// The stores of this process that somebody is connected to.
static STORES: Mutex<BTreeMap<String, Weak<Store>>> = Mutex::new(BTreeMap::new());

/// One named store.
#[derive(Default)]
pub(super) struct Store(Mutex<State>);

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Arc<str>>,
    queues: HashMap<QueueKey, Queue>,
    /// The largest sequence number given in any queue: one counter for all keeps a queue's numbers
    /// rising after the queue itself was dropped for being empty.
    last: u64,
}

#[derive(Default)]
struct Queue {
    entries: BTreeMap<u64, Stored>,
    by_id: HashMap<EntryId, u64>,
}

struct Stored {
    id: EntryId,
    session: SessionId,
    member: Arc<str>,
    since: SystemTime,
    /// Dropped with the entry: that is how listeners learn that it is gone.
    alive: watch::Sender<()>,
}

impl Store {
    /// The store of this name, made if nobody is connected to it.
    pub(super) fn named(name: &str) -> Arc<Self> {
        let mut stores = STORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Arc::new(Self::default());
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    pub(super) fn open(&self, session: &NewSession) -> Result<()> {
        let mut state = self.state();
        let taken =
            |(id, member): (&SessionId, &Arc<str>)| *member == session.member && *id != session.id;
        if state.sessions.iter().any(taken) {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        state.sessions.insert(session.id, Arc::clone(&session.member));
        Ok(())
    }

    pub(super) fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let state = self.state();
        state.check(session, "renew")?;
        let is_gone = |entry: &&EntryRef| {
            state.queues.get(&entry.queue).is_none_or(|queue| !queue.by_id.contains_key(&entry.id))
        };
        Ok(held.iter().filter(is_gone).map(|entry| entry.id.clone()).collect())
    }

    pub(super) fn close(&self, session: SessionId) {
        let mut state = self.state();
        state.sessions.remove(&session);
        for queue in state.queues.values_mut() {
            queue.entries.retain(|_, entry| entry.session != session);
            let entries = &queue.entries;
            queue.by_id.retain(|_, seq| entries.contains_key(seq));
        }
        state.queues.retain(|_, queue| !queue.entries.is_empty());
    }

    pub(super) fn enter(&self, new: &NewEntry) -> Result<Position> {
        let mut state = self.state();
        state.check(new.session, "enter")?;
        let next = state.last.saturating_add(1).max(unix_micros());
        let queue = state.queues.entry(new.place.queue.clone()).or_default();
        if let Some(seq) = queue.by_id.get(&new.place.id) {
            return Ok(queue.position(*seq));
        }
        queue.by_id.insert(new.place.id.clone(), next);
        let entry = Stored {
            id: new.place.id.clone(),
            session: new.session,
            member: Arc::clone(&new.member),
            since: SystemTime::now(),
            alive: watch::Sender::new(()),
        };
        queue.entries.insert(next, entry);
        let position = queue.position(next);
        state.last = next;
        Ok(position)
    }

    pub(super) fn leave(&self, entry: &EntryRef) {
        let mut state = self.state();
        let Some(queue) = state.queues.get_mut(&entry.queue) else { return };
        let Some(seq) = queue.by_id.remove(&entry.id) else { return };
        queue.entries.remove(&seq);
        if queue.entries.is_empty() {
            state.queues.remove(&entry.queue);
        }
    }

    pub(super) fn position(&self, entry: &NewEntry) -> Option<Position> {
        let state = self.state();
        let queue = state.queues.get(&entry.place.queue)?;
        let seq = *queue.by_id.get(&entry.place.id)?;
        (queue.entries.get(&seq)?.session == entry.session).then(|| queue.position(seq))
    }

    pub(super) fn entries(&self, queue: &QueueKey) -> Vec<Entry> {
        let state = self.state();
        let listed = |(seq, entry): (&u64, &Stored)| Entry {
            id: entry.id.clone(),
            seq: *seq,
            member: entry.member.to_string(),
            since: Some(entry.since),
        };
        state
            .queues
            .get(queue)
            .map(|queue| queue.entries.iter().map(listed).collect())
            .unwrap_or_default()
    }

    /// A channel that closes when the entry goes; `None`: it is gone.
    pub(super) fn listen(&self, entry: &EntryRef) -> Option<watch::Receiver<()>> {
        let state = self.state();
        let queue = state.queues.get(&entry.queue)?;
        let seq = queue.by_id.get(&entry.id)?;
        Some(queue.entries.get(seq)?.alive.subscribe())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs under this mutex, so a poisoned one is still consistent.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn check(&self, session: SessionId, operation: &'static str) -> Result<()> {
        if self.sessions.contains_key(&session) {
            return Ok(());
        }
        Err(Error::lost(operation, LossReason::ExpiredByServer))
    }
}

impl Queue {
    fn position(&self, seq: u64) -> Position {
        let before = self.entries.range(..seq).next_back();
        Position {
            seq,
            predecessor: before.map(|(seq, entry)| Predecessor { id: entry.id.clone(), seq: *seq }),
        }
    }
}
