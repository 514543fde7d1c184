//! The store of a simulated world: the memory backend, with leases, and with ways to fail.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::contents::Contents;
use crate::backend::{Entries, EntryId, Listing, NewSession, SessionId, Sessions, Values, Write};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;

/// How many older states of a queue are kept, with which observers may be answered.
const OLDER: usize = 4;

/// What kind of store it is.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Whether sessions have leases, and calls travel over a network. Otherwise the store is within the process, as memory is, and
    /// nothing can come between.
    pub is_remote: bool,
    /// Whether the store has a clock that its clients can read.
    pub has_clock: bool,
    /// Whether a watch reports that an entry was removed; otherwise the next heartbeat does.
    pub watches: bool,
    /// Whether leases start anew when the store restarts; otherwise their time goes on.
    pub renews_on_restart: bool,
}

impl Traits {
    /// One with all that a server of today has.
    pub const SERVER: Self =
        Self { is_remote: true, has_clock: true, watches: true, renews_on_restart: false };
}

/// How the network behaves. Chances are in millionths, for each call.
#[derive(Clone, Debug)]
pub struct Weather {
    /// How long a message is on its way, in milliseconds.
    pub delay: RangeInclusive<u64>,
    /// The chance that a message takes longer, and by how many milliseconds.
    pub slow: (u32, RangeInclusive<u64>),
    /// The chance that a reply takes longer, and by how many milliseconds.
    pub slow_reply: (u32, RangeInclusive<u64>),
    /// The chance that a request does not arrive.
    pub lost_request: u32,
    /// The chance that a reply does not arrive.
    pub lost_reply: u32,
    /// The chance that a request arrives once more, and how many milliseconds later.
    pub repeated_request: (u32, RangeInclusive<u64>),
    /// The chance that a notification does not arrive.
    pub lost_notification: u32,
    /// The chance that a notification comes although nothing has happened.
    pub early_notification: u32,
    /// The chance that a watch ends with an error.
    pub broken_watch: u32,
    /// The chance that an observer is answered with an older state, as by a server that lags behind. Each read may be answered by
    /// another server.
    pub older_answer: u32,
}

impl Weather {
    /// A weather in which nothing fails.
    pub fn calm() -> Self {
        Self {
            delay: 0..=1,
            slow: (0, 0..=0),
            slow_reply: (0, 0..=0),
            lost_request: 0,
            lost_reply: 0,
            repeated_request: (0, 0..=0),
            lost_notification: 0,
            early_notification: 0,
            broken_watch: 0,
            older_answer: 0,
        }
    }
}

/// The room that the store has for entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// As much as is needed.
    Enough,
    /// None: what needs room is refused.
    None,
    /// None, and a refusal does not say whether something was carried out. Nothing is.
    NoneInDoubt,
    /// What needs room is carried out, and answered as if it had been refused.
    Last,
}

fn no_room() -> Error {
    Error::new(ErrorKind::Quota, "update", "the store has no room")
}

/// A store and what is between it and its clients. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    traits: Traits,
    state: Mutex<State>,
}

struct State {
    /// The source of random numbers for the network and the store. It is not the library's, so that one more number
    /// drawn in the library does not change everything here.
    random: StdRng,
    contents: Arc<Contents>,
    weather: Weather,
    leases: BTreeMap<SessionId, Lease>,
    /// What a store has to remember to keep the rules about late calls: the sessions that were closed, the entries that were
    /// removed, the newest update of each entry, and the writes that were carried out, with their answers.
    closed: HashSet<SessionId>,
    left: HashSet<EntryId>,
    updated: HashMap<EntryId, u64>,
    written: HashMap<u64, u64>,
    /// The number of the last write of each queue's value.
    newest: BTreeMap<QueueKey, u64>,
    /// The last answers to observers of each queue, for answers with an older state.
    past: BTreeMap<QueueKey, VecDeque<Listing>>,
    /// How many updates were sent. Updates are numbered by this, in the order of sending.
    sent: u64,
    is_down: bool,
    /// The kind of error with which every call fails at once, if one is set.
    failing: Option<ErrorKind>,
    /// Whether nobody may enter a queue for now.
    is_quarantined: bool,
    room: Room,
    /// How many held entries the store lists in one answer; `None`: it lists none.
    longest_list: Option<usize>,
    /// The slots for calls in flight; `None`: there are as many as anybody wants.
    slots: Option<Arc<Semaphore>>,
    /// How often the store was stopped or started. Messages that were in flight at such a moment are lost.
    starts: u64,
    faults: BTreeMap<&'static str, u64>,
    /// How many calls were made, those that wait for notifications included.
    calls: u64,
}

#[derive(Clone, Copy)]
struct Lease {
    ttl: Duration,
    expires: Instant,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("traits", &self.0.traits).finish_non_exhaustive()
    }
}

impl World {
    /// A new store, empty.
    pub fn new(seed: u64, traits: Traits) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            contents: Arc::new(Contents::new()),
            weather: Weather::calm(),
            leases: BTreeMap::new(),
            closed: HashSet::new(),
            left: HashSet::new(),
            updated: HashMap::new(),
            written: HashMap::new(),
            newest: BTreeMap::new(),
            past: BTreeMap::new(),
            sent: 0,
            is_down: false,
            failing: None,
            is_quarantined: false,
            room: Room::Enough,
            longest_list: Some(usize::MAX),
            slots: None,
            starts: 0,
            faults: BTreeMap::new(),
            calls: 0,
        };
        Self(Arc::new(Inner { traits, state: Mutex::new(state) }))
    }

    /// What kind of store it is.
    pub fn traits(&self) -> Traits {
        self.0.traits
    }

    /// Changes how the network behaves.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Stops the store, or starts it again. Messages that are in flight are lost.
    pub fn set_down(&self, is_down: bool) {
        let mut state = self.state();
        state.is_down = is_down;
        state.starts += 1;
        if !is_down && self.0.traits.renews_on_restart {
            let now = Instant::now();
            state.leases.values_mut().for_each(|lease| lease.expires = now + lease.ttl);
        }
    }

    /// From now on every call of every client fails at once with this kind of error; with `Lost`, as that of a session that the store
    /// has ended. With `None`, calls arrive again.
    pub fn set_failing(&self, how: Option<ErrorKind>) {
        self.state().failing = how;
    }

    /// The error of a call that cannot be made; `None` if it can be made.
    pub(super) fn refusal(&self) -> Option<Error> {
        let failed = |kind| match kind {
            ErrorKind::Lost => Error::lost("call", LossReason::ExpiredByServer),
            kind => Error::new(kind, "call", "the store is out of reach"),
        };
        self.state().failing.map(failed).map(|error| error.with_effect(Effect::None))
    }

    /// Sets whether the store refuses all that want to enter a queue, as a store does that may have lost the record of who holds
    /// what.
    pub fn set_quarantined(&self, is_quarantined: bool) {
        self.state().is_quarantined = is_quarantined;
    }

    /// Sets the room for entries and their updates. Everything else needs none.
    pub fn set_room(&self, room: Room) {
        self.state().room = room;
    }

    /// Sets how many held entries of a session the store lists in one answer. With `None` it lists none, so that the holder of each
    /// looks for its own entry. It is set before clients acquire anything.
    pub fn set_longest_list(&self, longest: Option<usize>) {
        self.state().longest_list = longest;
    }

    pub(super) fn longest_list(&self) -> Option<usize> {
        self.state().longest_list
    }

    /// From now on only so many calls may be in flight at the same time; the others wait for their turn. Heartbeats do not count, and a
    /// watch counts until it has begun.
    pub fn set_slots(&self, slots: usize) {
        self.state().slots = Some(Arc::new(Semaphore::new(slots)));
    }

    /// A slot for a call, as soon as there is one; `None`: none is needed.
    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let slots = self.state().slots.clone()?;
        slots.acquire_owned().await.ok()
    }

    /// Fails if there is no room for an entry.
    pub(super) fn before_writing(&self) -> Result<()> {
        match self.state().room {
            Room::None => Err(no_room().with_effect(Effect::None)),
            Room::NoneInDoubt => Err(no_room().with_effect(Effect::Unknown)),
            Room::Enough | Room::Last => Ok(()),
        }
    }

    /// Fails although an entry was written, if it took the last room.
    pub(super) fn after_writing(&self) -> Result<()> {
        match self.state().room {
            Room::Last => Err(no_room().with_effect(Effect::Unknown)),
            Room::Enough | Room::None | Room::NoneInDoubt => Ok(()),
        }
    }

    /// Fails if nobody may enter a queue now.
    pub(super) fn admit(&self) -> Result<()> {
        if self.state().is_quarantined {
            let message = "the store is in quarantine";
            let refused = Error::new(ErrorKind::Unavailable, "enter", message);
            return Err(refused.with_effect(Effect::None));
        }
        Ok(())
    }

    /// The store loses all that it had: sessions, entries, values, and the last token.
    pub fn wipe(&self) {
        let mut state = self.state();
        state.leases.clear();
        state.past.clear();
        // Waiters that listen to the old store are notified that what they wait for is gone.
        let old = std::mem::replace(&mut state.contents, Arc::new(Contents::new()));
        drop(state);
        old.lose();
    }

    /// The store ends one session before its time; false if there is none.
    pub fn end_some_session(&self) -> bool {
        let mut state = self.state();
        if state.leases.is_empty() {
            return false;
        }
        let count = state.leases.len();
        let index = state.random.random_range(0..count);
        let Some(id) = state.leases.keys().nth(index).copied() else { return false };
        drop(state);
        self.end(id);
        true
    }

    /// Removes an entry that waits in a queue of this kind, as an operator might; false if there is none.
    pub fn remove_some_waiter(&self, kind: &str) -> bool {
        let State { random, contents, .. } = &mut *self.state();
        let waiters = contents.waiters(kind);
        if waiters.is_empty() {
            return false;
        }
        contents.leave(&waiters[random.random_range(0..waiters.len())]).is_ok()
    }

    /// Whether the store has the entry with this token in a queue of this name.
    pub fn has_entry(&self, name: &str, token: u64) -> bool {
        self.contents().has_entry(name, token)
    }

    /// How many entries the store has, in all queues.
    pub fn entries(&self) -> u64 {
        self.contents().entries()
    }

    /// The value that the store has at this moment in the queue of this kind and name, for a judge who does not go by what clients say.
    pub fn value(&self, kind: &str, name: &str) -> Option<Arc<str>> {
        self.contents().value(kind, name)
    }

    /// How often each kind of fault has happened by chance.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.state().faults.clone()
    }

    /// How many calls all clients have made, those that wait for notifications included.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    pub(super) fn count_call(&self) {
        self.state().calls += 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn contents(&self) -> Arc<Contents> {
        Arc::clone(&self.state().contents)
    }

    /// Draws random numbers, given how the network behaves.
    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut StdRng, &Weather) -> T) -> T {
        let State { random, weather, .. } = &mut *self.state();
        draw(random, weather)
    }

    pub(super) fn count(&self, fault: &'static str) {
        *self.state().faults.entry(fault).or_default() += 1;
    }

    /// Which start of the store this is; `None`: it is down.
    pub(super) fn start(&self) -> Option<u64> {
        let state = self.state();
        (!state.is_down).then_some(state.starts)
    }

    pub(super) async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.contents().open(session).await?;
        if !self.0.traits.is_remote {
            return Ok(None);
        }
        let lease = Lease { ttl: session.ttl, expires: Instant::now() + session.ttl };
        let is_new = self.state().leases.insert(session.id, lease).is_none();
        if is_new {
            let (world, id) = (self.clone(), session.id);
            drop(tokio::spawn(async move { world.expire(id).await }));
        }
        Ok(Some(session.ttl))
    }

    /// Ends the session when its lease is over: never before that, and often a little later, as most stores do.
    async fn expire(&self, id: SessionId) {
        while let Some(lease) = self.lease(id) {
            let late = {
                let random = &mut self.state().random;
                if random.random() { 0 } else { random.random_range(0..=200) }
            };
            let is_over = lease.expires <= Instant::now() && self.start().is_some();
            if is_over {
                return self.end(id);
            }
            tokio::time::sleep_until(lease.expires.max(Instant::now())).await;
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
    }

    fn lease(&self, id: SessionId) -> Option<Lease> {
        self.state().leases.get(&id).copied()
    }

    pub(super) fn end(&self, id: SessionId) {
        self.state().leases.remove(&id);
        self.contents().close_now(id);
    }

    /// Extends a lease.
    pub(super) fn renew(&self, id: SessionId) -> Result<()> {
        if !self.0.traits.is_remote {
            return Ok(());
        }
        let mut state = self.state();
        match state.leases.get_mut(&id) {
            Some(lease) => {
                lease.expires = Instant::now() + lease.ttl;
                Ok(())
            }
            None => Err(Error::lost("renew", LossReason::ExpiredByServer)),
        }
    }

    pub(super) fn close(&self, id: SessionId) {
        self.state().closed.insert(id);
        self.end(id);
    }

    pub(super) fn has_closed(&self, id: SessionId) -> bool {
        self.state().closed.contains(&id)
    }

    pub(super) fn has_left(&self, id: &EntryId) -> bool {
        self.state().left.contains(id)
    }

    pub(super) fn leaves(&self, id: &EntryId) {
        self.state().left.insert(id.clone());
    }

    /// A number for an update that is about to be sent.
    pub(super) fn send_update(&self) -> u64 {
        let mut state = self.state();
        state.sent += 1;
        state.sent
    }

    /// Notes that an update of this entry has arrived; false if a newer update has arrived before it.
    pub(super) fn is_newest(&self, id: &EntryId, number: u64) -> bool {
        let mut state = self.state();
        let newest = state.updated.entry(id.clone()).or_insert(number);
        *newest = number.max(*newest);
        *newest == number
    }

    /// Reads a queue for an observer. If `is_older`, the answer is an older state, if one is kept.
    pub(super) async fn observe(&self, queue: &QueueKey, is_older: bool) -> Result<Listing> {
        let listing = self.contents().read(queue).await?;
        let State { random, past, faults, .. } = &mut *self.state();
        let past = past.entry(queue.clone()).or_default();
        // An observer never sees a value go back: a group's watch would take an older value for the end of the group. So states
        // with another value are dropped.
        let version = |listing: &Listing| listing.value.as_ref().map(|value| value.version);
        past.retain(|older| version(older) == version(&listing));
        if is_older && !past.is_empty() {
            *faults.entry("older answer").or_default() += 1;
            return Ok(past[random.random_range(0..past.len())].clone());
        }
        if past.back().is_none_or(|last| last.revision != listing.revision) {
            past.push_back(listing.clone());
        }
        if past.len() > OLDER {
            past.pop_front();
        }
        Ok(listing)
    }

    /// Carries out a write once, however often it arrives, and repeats the answer until another write has replaced
    /// the value.
    pub(super) async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let before = {
            let state = self.state();
            let is_newest = state.newest.get(&write.queue) == Some(&write.id);
            state.written.get(&write.id).map(|version| is_newest.then_some(*version))
        };
        if let Some(answer) = before {
            return Ok(answer);
        }
        let answer = self.contents().write(write).await?;
        if let Some(version) = answer {
            let mut state = self.state();
            state.written.insert(write.id, version);
            state.newest.insert(write.queue.clone(), write.id);
        }
        Ok(answer)
    }
}
