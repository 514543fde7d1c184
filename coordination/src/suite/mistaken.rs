//! A store that makes one mistake on purpose, so that it can be seen which checks notice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::test_store::{CALL, attempt};
use crate::backend::{
    Cursor, Data, Entries, EntryId, EntryRef, Gone, Listing, Mode, NewEntry, NewSession, Page,
    Position, SessionId, Sessions, Store, Values, Watching, Write,
};
use crate::characteristics::Characteristics;
use crate::error::Result;
use crate::key::QueueKey;
use crate::time::BootInstant;

/// The mistake that a store makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// An `enter` that was given up takes effect after its `leave` was answered.
    LateEnterTakesEffect,
    /// `gone` asks a silent store again and again, instead of telling its caller.
    GoneWaitsForEver,
}

/// Does everything as another store does, except for the mistake.
pub(super) struct Mistaken {
    store: Arc<dyn Store>,
    mistake: Mistake,
    given_up: Arc<Mutex<Vec<NewEntry>>>,
}

/// An `enter` that is in progress.
struct Entering<'a> {
    entry: &'a NewEntry,
    since: Instant,
    is_answered: bool,
    given_up: &'a Mutex<Vec<NewEntry>>,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        // A call that was dropped at once has not been sent.
        if !self.is_answered && self.since.elapsed() >= CALL / 2 {
            lock(self.given_up).push(self.entry.clone());
        }
    }
}

impl Mistaken {
    pub(super) fn new(store: Arc<dyn Store>, mistake: Mistake) -> Self {
        Self { store, mistake, given_up: Arc::default() }
    }

    /// Enters an entry after it has left, if its `enter` was given up before without an answer.
    fn enter_late(&self, left: &EntryRef) {
        let mut given_up = lock(&self.given_up);
        let late = given_up.iter().position(|entry| entry.entry_ref == *left);
        if let Some(entry) = late.map(|index| given_up.swap_remove(index)) {
            // Under another id, because the store itself remembers that the entry of this id has left.
            let id = EntryId::random(entry.session);
            let entry_ref = EntryRef { id, ..entry.entry_ref };
            let (entry, store) = (NewEntry { entry_ref, ..entry }, Arc::clone(&self.store));
            tokio::spawn(async move { store.enter(&entry).await });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Sessions for Mistaken {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.store.open(session).await
    }

    fn asked(&self, session: SessionId) -> Option<BootInstant> {
        self.store.asked(session)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        self.store.renew(session, held, gone).await
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.store.close(session).await
    }

    fn kept(&self) -> usize {
        self.store.kept()
    }
}

#[async_trait]
impl Entries for Mistaken {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let given_up = &*self.given_up;
        let mut call = Entering { entry, since: Instant::now(), is_answered: false, given_up };
        let answer = self.store.enter(entry).await;
        call.is_answered = answer.is_ok();
        answer
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        self.store.update(entry, seq).await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        self.store.leave(entry, seq).await?;
        if self.mistake == Mistake::LateEnterTakesEffect {
            self.enter_late(entry);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        self.store.position(entry, seq).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        self.store.read(queue).await
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.store.queues(kind, from).await
    }
}

#[async_trait]
impl Values for Mistaken {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.store.write(write).await
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        self.store.records(queue, names).await
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        self.store.names(kind, from).await
    }
}

#[async_trait]
impl Watching for Mistaken {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        loop {
            let outcome = self.store.gone(entry, seq, waiter, recheck).await;
            if self.mistake != Mistake::GoneWaitsForEver
                || attempt(self.store.read(&entry.queue)).await.is_ok()
            {
                return outcome;
            }
        }
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        self.store.changed(queue, revision, recheck).await
    }
}

impl Store for Mistaken {
    fn scheme(&self) -> &'static str {
        self.store.scheme()
    }

    fn characteristics(&self) -> Characteristics {
        self.store.characteristics()
    }
}
