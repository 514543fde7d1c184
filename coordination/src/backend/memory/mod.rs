//! `memory://[name]`: sessions and queues in this process, for tests.
//!
//! # How it works
//!
//! Coordinators of one process that name the same store share one map under a mutex. Entries are in
//! the order of their sequence numbers; a waiter listens to the entry before it.
//!
//! # Guarantees
//!
//! Exclusion between tasks and threads of this process, in the order of asking. A session lives as
//! long as its coordinator: there is no lease to run out, so a guard has no deadline. Removal of an
//! entry by [`Lock::break_lock`](crate::Lock::break_lock) is told with the next heartbeat. Tokens start from the
//! wall clock in microseconds and rise by at least one.
//!
//! # Requirements
//!
//! None. It runs on the caller's tokio runtime where there is one, on tokio's clock: a test
//! that pauses time pauses it too.
//!
//! # URL options
//!
//! The common ones.

mod store;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use self::store::Store;
use super::{
    Backend, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position, SessionId, Write,
};
use crate::characteristics::{Characteristics, Durability, Liveness, Scope};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::key::QueueKey;
use crate::url::Url;

/// The options beyond the common ones.
pub(crate) const OPTIONS: &[&str] = &[];

/// What the URL says.
pub(crate) struct Config {
    name: String,
}

impl Config {
    pub(crate) fn parse(url: &Url) -> Result<Self> {
        if url.user.is_some()
            || url.password.is_some()
            || !matches!(url.path.as_str(), "" | "/")
            || url.hosts.len() > 1
        {
            return Err(Error::config(
                "a memory URL is memory://name, or memory:// for the unnamed store",
            ));
        }
        let name = url.hosts.first().map(|host| host.name.clone()).unwrap_or_default();
        Ok(Self { name })
    }
}

/// Somebody who listens to a queue, which may be empty; then nothing else keeps it.
struct Listening<'a> {
    store: &'a Store,
    queue: &'a QueueKey,
    channel: Option<watch::Receiver<u64>>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.channel = None;
        self.store.tidy(self.queue);
    }
}

/// The backend: a named store of this process.
pub(crate) struct Memory {
    store: Arc<Store>,
}

impl Memory {
    pub(crate) fn new(config: &Config, settings: &Settings) -> Self {
        // A NUL cannot be part of a namespace, so two pairs never make one name.
        Self { store: Store::named(&format!("{}\0{}", config.name, settings.namespace)) }
    }

    /// A store that nobody else can name.
    #[cfg(coordination_internals)]
    pub(crate) fn unshared() -> Self {
        Self { store: Arc::new(Store::new()) }
    }

    /// How many entries there are in all queues.
    #[cfg(coordination_internals)]
    pub(crate) fn entries(&self) -> u64 {
        self.store.entries()
    }

    /// The entries in queues of this kind that another one blocks.
    #[cfg(coordination_internals)]
    pub(crate) fn waiters(&self, kind: &str) -> Vec<EntryRef> {
        self.store.waiters(kind)
    }

    /// Removes an entry, whosever it is.
    #[cfg(coordination_internals)]
    pub(crate) fn remove(&self, entry: &EntryRef) {
        self.store.leave(entry);
    }

    /// Loses everything.
    #[cfg(coordination_internals)]
    pub(crate) fn forget_all(&self) {
        self.store.forget_all();
    }
}

#[async_trait]
impl Backend for Memory {
    fn scheme(&self) -> &'static str {
        "memory"
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Threads,
            liveness: Liveness::Process,
            loss_detection: self.loss_detection(),
            survives_restart: Durability::NotApplicable,
            survives_power_loss: Durability::No,
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: None,
            max_plain_name: usize::MAX,
            min_ttl: None,
        }
    }

    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.store.open(session).map(|()| None)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        self.store.renew(session, held)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.store.close(session);
        Ok(())
    }

    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        self.store.enter(entry)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        Ok(self.store.update(entry, seq))
    }

    async fn leave(&self, entry: &EntryRef, _seq: Option<u64>) -> Result<()> {
        self.store.leave(entry);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        Ok(self.store.position(entry, seq))
    }

    async fn gone(
        &self,
        entry: &EntryRef,
        _seq: u64,
        waiter: Mode,
        _recheck: Duration,
    ) -> Result<()> {
        // No notification is ever lost here: the entry itself is what is listened to.
        if let Some(mut alive) = self.store.listen(entry, waiter) {
            // Updated, or dropped with the entry: callers look again.
            let _ = alive.changed().await;
        }
        Ok(())
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        Ok(self.store.read(queue))
    }

    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        Ok(self.store.write(write))
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let mut listening = Listening { store: &self.store, queue, channel: None };
        let channel = listening.channel.insert(self.store.listen_to_queue(queue));
        // The sender goes with the store, which is held here.
        let moved = channel.wait_for(|now| *now != revision);
        let _ = tokio::time::timeout(recheck, moved).await;
        Ok(())
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        Ok(self.store.names(kind))
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        Ok(self.store.queues(kind))
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        Some(self.store.enter(entry))
    }

    fn leave_now(&self, entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        self.store.leave(entry);
        Some(Ok(()))
    }

    fn close_now(&self, session: SessionId) {
        self.store.close(session);
    }
}
