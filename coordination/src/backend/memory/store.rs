//! A named store: one map under one mutex.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{
    Beside, Blocker, Clock, Cursor, Data, Entry, EntryId, EntryRef, Listing, Mode, NewEntry,
    NewSession, PAGE, Page, Position, SessionId, Value, Write,
};
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::time::number_after;

/// The stores of this process to which a coordinator is connected.
static STORES: Mutex<BTreeMap<String, Weak<Store>>> = Mutex::new(BTreeMap::new());

/// One named store.
pub(crate) struct Store {
    state: Mutex<State>,
    /// The moment from which the store's clock counts. It is tokio's clock, so that a test can pause it.
    start: Instant,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Arc<str>>,
    queues: BTreeMap<QueueKey, Queue>,
    /// The largest number that was given to an entry, a value or a revision of any queue. All queues take their numbers from this
    /// one counter. So if a queue is removed because nothing needs it, and is made again later, its numbers still go on rising.
    last: u64,
    /// `Some` while a test has made the store unreachable: the sessions that are to be closed when it can be reached again.
    #[cfg(feature = "testing")]
    away: Option<Vec<SessionId>>,
}

#[derive(Default)]
struct Queue {
    entries: BTreeMap<u64, Stored>,
    by_id: HashMap<EntryId, u64>,
    value: Option<Value>,
    records: HashMap<Arc<str>, Data>,
    /// The id of the last write, and the version that this write returned: if the same write is repeated, it returns that version
    /// again.
    written: Option<(u64, u64)>,
    revision: watch::Sender<u64>,
}

struct Stored {
    id: EntryId,
    session: SessionId,
    member: Arc<str>,
    since: SystemTime,
    label: Option<Arc<str>>,
    mode: Mode,
    data: Data,
    /// Wakes the entry's listeners when the entry is updated. It is dropped together with the entry, and from this drop the
    /// listeners learn that the entry is gone.
    alive: watch::Sender<()>,
}

impl Store {
    /// The store of this name. If no coordinator is connected to it, makes a new, empty one.
    pub(super) fn named(name: &str) -> Arc<Self> {
        let mut stores = STORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Arc::new(Self::new());
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// An empty store.
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), start: Instant::now() }
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

    pub(crate) fn close(&self, session: SessionId) {
        self.state().close(session);
    }

    pub(super) fn enter(&self, new: &NewEntry) -> Result<Position> {
        let mut state = self.state();
        state.check(new.session, "enter")?;
        let state = &mut *state;
        let queue = state.queues.entry(new.entry_ref.queue.clone()).or_default();
        if let Some(seq) = queue.by_id.get(&new.entry_ref.id) {
            return Ok(queue.position(*seq, new.mode));
        }
        let seq = queue.moved(&mut state.last);
        queue.by_id.insert(new.entry_ref.id.clone(), seq);
        let entry = Stored {
            id: new.entry_ref.id.clone(),
            session: new.session,
            member: Arc::clone(&new.member),
            since: SystemTime::now(),
            label: new.label.clone(),
            mode: new.mode,
            data: Arc::clone(&new.data),
            alive: watch::Sender::new(()),
        };
        queue.entries.insert(seq, entry);
        Ok(queue.position(seq, new.mode))
    }

    pub(super) fn update(&self, new: &NewEntry, seq: u64) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(queue) = state.queues.get_mut(&new.entry_ref.queue) else { return false };
        let Some(entry) = queue.own(new, seq) else { return false };
        (entry.mode, entry.data) = (new.mode, Arc::clone(&new.data));
        entry.alive.send_replace(());
        queue.moved(&mut state.last);
        true
    }

    pub(super) fn leave(&self, entry: &EntryRef) {
        self.state().leave(&entry.queue, &entry.id);
    }

    pub(super) fn position(&self, entry: &NewEntry, seq: u64) -> Option<Position> {
        let mut state = self.state();
        let queue = state.queues.get_mut(&entry.entry_ref.queue)?;
        queue.own(entry, seq)?;
        Some(queue.position(seq, entry.mode))
    }

    pub(super) fn read(&self, queue: &QueueKey) -> Listing {
        let state = self.state();
        let now = self.start.elapsed();
        let clock = Some(Clock { epoch: 0, now });
        let Some(queue) = state.queues.get(queue) else {
            return Listing { clock, ..Listing::default() };
        };
        let listed = |(seq, entry): (&u64, &Stored)| Entry {
            id: entry.id.clone(),
            seq: *seq,
            member: Arc::clone(&entry.member),
            since: Some(entry.since),
            label: entry.label.clone(),
            mode: entry.mode,
            data: Arc::clone(&entry.data),
        };
        Listing {
            revision: *queue.revision.borrow(),
            entries: queue.entries.iter().map(listed).collect(),
            value: queue.value.clone(),
            clock,
            source: None,
        }
    }

    pub(super) fn write(&self, write: &Write) -> Option<u64> {
        let mut state = self.state();
        let state = &mut *state;
        let queue = state.queues.entry(write.queue.clone()).or_default();
        let version = queue.write(write, &mut state.last);
        if !queue.is_used() {
            state.queues.remove(&write.queue);
        }
        version
    }

    pub(super) fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Vec<Option<Data>> {
        let state = self.state();
        let records = state.queues.get(queue).map(|queue| &queue.records);
        names.iter().map(|name| records?.get(name).cloned()).collect()
    }

    /// A channel with the queue's revision, which changes whenever the queue changes. As long as the receiver exists, the queue
    /// is kept.
    pub(super) fn listen_to_queue(&self, queue: &QueueKey) -> watch::Receiver<u64> {
        self.state().queues.entry(queue.clone()).or_default().revision.subscribe()
    }

    /// Removes the queue if nothing needs it any more. To be called after a listener was dropped.
    pub(super) fn tidy(&self, queue: &QueueKey) {
        let mut state = self.state();
        if state.queues.get(queue).is_some_and(|queue| !queue.is_used()) {
            state.queues.remove(queue);
        }
    }

    pub(super) fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Page {
        self.names_of(kind, from, |queue| queue.value.is_some())
    }

    pub(super) fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Page {
        self.names_of(kind, from, |queue| !queue.entries.is_empty())
    }

    fn names_of(
        &self,
        kind: &'static str,
        from: Option<&Cursor>,
        counts: impl Fn(&Queue) -> bool,
    ) -> Page {
        let after = str::from_utf8(Cursor::place(from)).unwrap_or_default();
        // Without a cursor, the page has to begin with the first queue of this kind. So it begins at `\0`, the smallest possible
        // name.
        let first = QueueKey::new(kind, if after.is_empty() { "\0" } else { after }, usize::MAX);
        let Ok(first) = first else { return Page::default() };
        let state = self.state();
        let of_kind = state.queues.range(first..).take_while(|(key, _)| key.kind() == kind);
        let mut left = of_kind.skip_while(|(key, _)| key.name() == after).peekable();
        let page: Vec<_> = left.by_ref().take(PAGE).collect();
        let more = left.peek().and_then(|_| page.last());
        Page {
            next: more.map(|(key, _)| Cursor::to(key.name().as_bytes())),
            names: page
                .iter()
                .filter(|(_, queue)| counts(queue))
                .map(|(key, _)| key.name().to_owned())
                .collect(),
        }
    }

    /// A channel that wakes its listener when the entry is updated, and closes when the entry is removed. `None`: the entry is
    /// gone, or does not block a waiter of this mode.
    pub(super) fn listen(&self, entry: &EntryRef, waiter: Mode) -> Option<watch::Receiver<()>> {
        let state = self.state();
        let queue = state.queues.get(&entry.queue)?;
        let stored = queue.entries.get(queue.by_id.get(&entry.id)?)?;
        stored.mode.blocks(waiter).then(|| stored.alive.subscribe())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs while this mutex is locked, and the code here does not panic halfway through a change. So the state
        // is consistent even if the mutex is poisoned.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What tests can do with a store, to make faults.
#[cfg(feature = "testing")]
impl Store {
    pub(crate) fn set_reachable(&self, yes: bool) {
        let mut state = self.state();
        if !yes {
            state.away.get_or_insert_default();
            return;
        }
        // The sessions that were to be closed while the store was unreachable are closed now. A store with leases would have
        // ended these sessions by itself.
        for session in state.away.take().unwrap_or_default() {
            state.close(session);
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.state().away.is_none()
    }

    /// [Closes](Self::close) the session at once if the store can be reached. Otherwise the session is closed when the test makes
    /// the store reachable again.
    pub(super) fn close_later(&self, session: SessionId) {
        let mut state = self.state();
        match &mut state.away {
            Some(closed) => closed.push(session),
            None => state.close(session),
        }
    }

    /// Removes the first entry of this queue.
    pub(crate) fn delete_first(&self, queue: &QueueKey) -> Option<EntryId> {
        let mut state = self.state();
        let id = state.queues.get(queue)?.entries.values().next()?.id.clone();
        state.leave(queue, &id);
        Some(id)
    }
}

impl State {
    fn close(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        for queue in self.queues.values_mut() {
            let before = queue.entries.len();
            queue.entries.retain(|_, entry| entry.session != session);
            if queue.entries.len() < before {
                let entries = &queue.entries;
                queue.by_id.retain(|_, seq| entries.contains_key(seq));
                queue.moved(&mut self.last);
            }
        }
        self.queues.retain(|_, queue| queue.is_used());
    }

    fn leave(&mut self, key: &QueueKey, id: &EntryId) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let Some(seq) = queue.by_id.remove(id) else { return };
        queue.entries.remove(&seq);
        queue.moved(&mut self.last);
        if !queue.is_used() {
            self.queues.remove(key);
        }
    }

    fn check(&self, session: SessionId, operation: &'static str) -> Result<()> {
        if self.sessions.contains_key(&session) {
            return Ok(());
        }
        Err(Error::lost(operation, LossReason::ExpiredByServer))
    }
}

impl Queue {
    /// Takes the next number, makes it the queue's revision, which wakes the queue's listeners, and returns it.
    fn moved(&mut self, last: &mut u64) -> u64 {
        *last = number_after(*last, unix_micros());
        self.revision.send_replace(*last);
        *last
    }

    /// Whether the queue has to be kept: because it has an entry, a value or a listener.
    fn is_used(&self) -> bool {
        !self.entries.is_empty() || self.value.is_some() || self.revision.receiver_count() > 0
    }

    fn write(&mut self, write: &Write, last: &mut u64) -> Option<u64> {
        if let Some((_, version)) = self.written.filter(|(by, _)| *by == write.id) {
            return Some(version);
        }
        let current = self.value.as_ref().map(|value| value.version);
        if current != write.expected || write.if_empty && !self.entries.is_empty() {
            return None;
        }
        let moved = self.moved(last);
        self.value = write.data.clone().map(|data| Value { version: moved, data, writer: None });
        // If the value is removed, the write returns the version of the value that was removed.
        let version = self.value.as_ref().map(|value| value.version).or(current)?;
        for Beside { name, data, .. } in &write.beside {
            match data {
                Some(data) => drop(self.records.insert(Arc::clone(name), Arc::clone(data))),
                None => drop(self.records.remove(name)),
            }
        }
        self.written = Some((write.id, version));
        Some(version)
    }

    fn own(&mut self, new: &NewEntry, seq: u64) -> Option<&mut Stored> {
        let is_own =
            |entry: &&mut Stored| entry.session == new.session && entry.id == new.entry_ref.id;
        self.entries.get_mut(&seq).filter(is_own)
    }

    fn position(&self, seq: u64, mode: Mode) -> Position {
        let mut before = self.entries.range(..seq).rev();
        let blocker = before.find(|(_, entry)| entry.mode.blocks(mode));
        Position {
            seq,
            blocker: blocker.map(|(seq, entry)| Blocker { id: entry.id.clone(), seq: *seq }),
        }
    }
}
