//! What the simulated store has: a memory backend of its own, which can lose everything, and which makes
//! [mistakes on purpose](crate::canary).

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::memory::Memory;
use crate::backend::{
    Blocker, Data, Entries, Entry, EntryId, EntryRef, Gone, Listing, Mode, NewEntry, Position,
    Room, SessionId, Sessions, Watching,
};
use crate::canary::{Canary, sings};
use crate::error::Result;
use crate::key::QueueKey;

/// The re-check interval for the memory backend, which loses no notifications and so needs no re-check. Only the network loses
/// them.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the store has. Calls that are not defined here are the memory backend's.
pub(super) struct Contents {
    memory: Memory,
    /// The queues that somebody has entered.
    queues: Mutex<BTreeSet<QueueKey>>,
    is_lost: watch::Sender<bool>,
}

impl Deref for Contents {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Contents {
    pub(super) fn new() -> Self {
        Self {
            memory: Memory::unshared(),
            queues: Mutex::default(),
            is_lost: watch::Sender::new(false),
        }
    }

    /// Says that all data are lost: every waiter is notified that what it waits for has changed.
    pub(super) fn lose(&self) {
        self.is_lost.send_replace(true);
    }

    /// How many entries there are in all queues.
    pub(super) fn entries(&self) -> u64 {
        self.queues().iter().map(|queue| self.listing(queue).entries.len() as u64).sum()
    }

    /// Whether a queue of this name has an entry with this number.
    pub(super) fn has_entry(&self, name: &str, seq: u64) -> bool {
        let queues = self.queues();
        let mut named = queues.iter().filter(|queue| queue.name() == name);
        named.any(|queue| self.listing(queue).entries.iter().any(|entry| entry.seq == seq))
    }

    /// The value of the queue of this kind and name.
    pub(super) fn value(&self, kind: &str, name: &str) -> Option<Data> {
        let queues = self.queues();
        let queue = queues.iter().find(|queue| queue.kind() == kind && queue.name() == name)?;
        self.listing(queue).value.map(|value| value.data)
    }

    /// The entries in queues of this kind that wait because another entry blocks them.
    pub(super) fn waiters(&self, kind: &str) -> Vec<EntryRef> {
        let queues = self.queues();
        let of_kind = queues.iter().filter(|queue| queue.kind() == kind);
        let waiting = of_kind.flat_map(|queue| {
            let entries = self.listing(queue).entries;
            let is_blocked = |entry: &&Entry| {
                let mut before = entries.iter().take_while(|other| other.seq < entry.seq);
                before.any(|other| other.mode.blocks(entry.mode))
            };
            let entry_ref = |entry: &Entry| EntryRef { queue: queue.clone(), id: entry.id.clone() };
            entries.iter().filter(is_blocked).map(entry_ref).collect::<Vec<_>>()
        });
        waiting.collect()
    }

    pub(super) fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let queue = self.entered(&entry.entry_ref.queue);
        let entry_ref = EntryRef { queue, ..entry.entry_ref.clone() };
        let entry = NewEntry { entry_ref, ..entry.clone() };
        self.queues().insert(entry.entry_ref.queue.clone());
        let position = now(self.memory.enter(&entry))?;
        Ok(self.seen(&entry, position))
    }

    pub(super) fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let position = now(self.memory.position(entry, seq))?;
        Ok(position.map(|position| self.seen(entry, position)))
    }

    pub(super) fn leave(&self, entry: &EntryRef) -> Result<()> {
        let first = || self.listing(&entry.queue).entries.into_iter().next();
        let by_name = sings(Canary::ReleaseByName).then(first).flatten();
        let id = by_name.map_or_else(|| entry.id.clone(), |first| first.id);
        now(self.memory.leave(&EntryRef { id, ..entry.clone() }, None))
    }

    pub(super) fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
        gone: &Gone<'_>,
    ) -> Result<()> {
        if sings(Canary::RenewalAfterRelease) {
            now(self.memory.renew(session, &[], gone))?;
            return held.iter().try_for_each(|entry| self.put_back(session, entry));
        }
        now(self.memory.renew(session, held, gone))
    }

    /// Those of these entries of a session that are gone.
    pub(super) fn missing(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let missing = Mutex::<Vec<EntryId>>::default();
        let note =
            |id: &EntryId| missing.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        now(self.memory.renew(session, held, &note))?;
        Ok(missing.into_inner().unwrap_or_default())
    }

    pub(super) async fn gone(&self, entry: &EntryRef, seq: u64, waiter: Mode) -> Result<()> {
        self.unless_lost(self.memory.gone(entry, seq, waiter, FOREVER)).await
    }

    pub(super) async fn changed(&self, queue: &QueueKey, revision: u64) -> Result<()> {
        self.unless_lost(self.memory.changed(queue, revision, FOREVER)).await
    }

    async fn unless_lost(&self, wait: impl Future<Output = Result<()>>) -> Result<()> {
        let mut lost = self.is_lost.subscribe();
        tokio::select! {
            biased;
            outcome = wait => outcome,
            _ = lost.wait_for(|is_lost| *is_lost) => Ok(()),
        }
    }

    /// The queue that is entered: this one, or by a mistake on purpose one whose name begins with its name.
    fn entered(&self, queue: &QueueKey) -> QueueKey {
        let queues = self.queues();
        let mut others = queues
            .iter()
            .rev()
            .filter(|other| other.kind() == queue.kind() && other.name().starts_with(queue.name()));
        let is_used = |other: &&QueueKey| !self.listing(other).entries.is_empty();
        let other = sings(Canary::PrefixMatch).then(|| others.find(is_used)).flatten();
        other.unwrap_or(queue).clone()
    }

    /// A position as the store returns it: as it is, or by a mistake on purpose without the blockers that the same client has
    /// entered.
    fn seen(&self, entry: &NewEntry, position: Position) -> Position {
        if !sings(Canary::Reentrant) {
            return position;
        }
        let entries = self.listing(&entry.entry_ref.queue).entries;
        let mut before = entries.iter().rev().skip_while(|other| other.seq >= position.seq);
        let is_blocker =
            |other: &&Entry| other.mode.blocks(entry.mode) && other.member != entry.member;
        let blocker = before.find(is_blocker);
        let blocker = blocker.map(|other| Blocker { id: other.id.clone(), seq: other.seq });
        Position { blocker, ..position }
    }

    /// What a heartbeat does by a mistake on purpose: it enters an entry again that was released.
    fn put_back(&self, session: SessionId, entry: &EntryRef) -> Result<()> {
        let entry = NewEntry {
            entry_ref: entry.clone(),
            session,
            member: "".into(),
            label: None,
            mode: Mode::Exclusive,
            data: "".into(),
            room: Room::default(),
        };
        self.enter(&entry).map(|_| ())
    }

    fn listing(&self, queue: &QueueKey) -> Listing {
        now(self.memory.read(queue)).unwrap_or_default()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeSet<QueueKey>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer of the memory backend. Its calls complete at once, except `gone` and `changed`.
fn now<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory backend answers at once"),
    }
}
