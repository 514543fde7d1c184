//! The lock: one holder at a time, in the order of asking.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::queue::{self, Patience, Place};
use crate::backend::EntryRef;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::session::Session;
use crate::time::BootInstant;
use crate::token::FencingToken;

/// A named lock. Made by [`Coordinator::lock`](crate::Coordinator::lock), without I/O; cheap to clone.
///
/// Not re-entrant: a task that asks twice waits for itself, like any two strangers.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let guard = lock.acquire(Some(Duration::from_secs(5))).await?;
/// assert!(guard.is_held());
/// assert!(lock.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lock {
    session: Arc<Session>,
    queue: QueueKey,
    // Keeps the session open as long as a lock can be acquired with it.
    _coordinator: Arc<dyn Send + Sync>,
}

impl Lock {
    pub(crate) fn new(
        session: Arc<Session>,
        queue: QueueKey,
        coordinator: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { session, queue, _coordinator: coordinator }
    }

    /// The lock's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Waits for the lock and returns the guard that holds it.
    ///
    /// `timeout` bounds the whole call; `None` waits for ever, also through an outage of the store;
    /// zero asks once, like [`try_acquire`](Self::try_acquire). On return the lock is held until
    /// the guard is released, dropped or [lost](LockGuard::lost).
    ///
    /// A caller whose session is lost while it waits queues again, at the end, under the next session.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: somebody else held it all the time.
    /// * [`ErrorKind::Unavailable`]: the store did not answer within `timeout`.
    /// * [`ErrorKind::Lost`]: granted, and the session was lost before the guard could be made.
    /// * [`ErrorKind::Closed`]: the coordinator was stopped, or this is a forked child.
    /// * [`ErrorKind::Permission`], [`ErrorKind::Quota`], [`ErrorKind::Storage`],
    ///   [`ErrorKind::Auth`]: the store refused; nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point gives up the place in the queue; nothing is left behind at
    /// the store, and a lock granted meanwhile is released at once.
    ///
    /// # Fairness
    ///
    /// First come, first served, by the order of arrival at the store. Nobody overtakes.
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        let patience = match timeout {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Never,
            Some(limit) => Patience::For(limit),
        };
        let place = self.named(queue::acquire(&self.session, &self.queue, patience).await)?;
        place.map(|place| LockGuard::new(place, self)).ok_or_else(|| {
            Error::new(ErrorKind::Timeout, "acquire", "somebody else holds it")
                .on_key(self.name())
                .on_backend(self.session.backend.scheme())
        })
    }

    /// Takes the lock if nobody holds it or waits for it; `None` otherwise.
    ///
    /// One round trip to the store, bounded by the heartbeat interval and a sixth of the lease.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let place =
            self.named(queue::acquire(&self.session, &self.queue, Patience::Never).await)?;
        Ok(place.map(|place| LockGuard::new(place, self)))
    }

    /// Who holds the lock and who waits for it, in order; empty when it is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Only reads.
    pub async fn holders(&self) -> Result<Vec<Contender>> {
        Ok(self.contenders().await?.into_iter().map(|(_, contender)| contender).collect())
    }

    /// Takes the lock from whoever holds it, and tells who that was; `None` when it was free.
    ///
    /// For operators, when a holder hangs. It learns of the loss through its guard, at once or within a
    /// heartbeat, and may go on writing until then: only fencing stops it. The next waiter is served.
    ///
    /// # Errors
    ///
    /// As for [`holders`](Self::holders); [`effect`](Error::effect) tells whether it may be broken.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not break the lock. It never breaks a later grant.
    pub async fn break_lock(&self) -> Result<Option<Contender>> {
        let Some((entry, contender)) = self.contenders().await?.into_iter().next() else {
            return Ok(None);
        };
        tracing::warn!(lock = ?self.name(), member = ?contender.member, token = %contender.token, "breaking a lock");
        let session = Arc::clone(&self.session);
        let seq = Some(contender.token.value());
        self.in_session("break", async move { session.backend.leave(&entry, seq).await }).await?;
        Ok(Some(contender))
    }

    async fn contenders(&self) -> Result<Vec<(EntryRef, Contender)>> {
        let (session, queue) = (Arc::clone(&self.session), self.queue.clone());
        let entries =
            self.in_session("list", async move { session.backend.entries(&queue).await }).await?;
        let contenders = entries.into_iter().enumerate().filter_map(|(index, entry)| {
            let place = EntryRef { queue: self.queue.clone(), id: entry.id };
            let token = FencingToken::new(entry.seq)?;
            Some((
                place,
                Contender { member: entry.member, since: entry.since, token, holding: index == 0 },
            ))
        });
        Ok(contenders.collect())
    }

    /// One bounded call to the store, on the session's runtime.
    async fn in_session<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.session.check_process(operation)?;
        let session = Arc::clone(&self.session);
        let ttl = Some(session.settings.ttl);
        let task = self.session.spawn(async move { session.attempt(ttl, operation, call).await });
        self.named(task.await.unwrap_or_else(|_| Err(Error::lost(operation, LossReason::Closed))))
    }

    fn named<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| error.on_key(self.name()).on_backend(self.session.backend.scheme()))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Somebody who holds a lock or waits for it, as [`Lock::holders`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contender {
    /// Its member id; empty for a program that uses another library on the same store.
    pub member: String,
    /// When it asked, by its own wall clock: for people to read, not to compare.
    pub since: Option<SystemTime>,
    /// The token it has, or will have.
    pub token: FencingToken,
    /// Whether it holds the lock; it waits otherwise.
    pub holding: bool,
}

/// Holds a lock; releases it when dropped.
///
/// It can be lost: see [`lost`](Self::lost). The questions it answers are local and instant, and right
/// even while the network, the store or the program's executor hangs.
///
/// Dropping it never blocks: the release goes on in the background, and if it cannot be sent, the lock
/// ends with the session. In a forked child a guard is dead and dropping it does nothing.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    place: Place,
    name: QueueKey,
    token: FencingToken,
}

impl LockGuard {
    fn new(place: Place, lock: &Lock) -> Self {
        // Invariant: a granted place has been entered, and stores number their entries from 1 on.
        let token = place.seq().and_then(FencingToken::new).expect("a granted place has a number");
        Self { place, name: lock.queue.clone(), token }
    }

    /// The lock's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The fencing token of this grant: larger than that of every grant of this lock before.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the lock is held at this very moment, by this machine's clock.
    ///
    /// While it says true, nobody else has been granted the lock (contract S1), under the assumptions
    /// of `docs/guarantees.md`: clocks that run at nearly the same rate, a store that keeps its word.
    pub fn is_held(&self) -> bool {
        self.place.lost().is_none()
    }

    /// Until when the lock is held if nothing more is heard from the store.
    ///
    /// Heartbeats move it. `None`: it lives as long as the process (memory, file).
    pub fn deadline(&self) -> Option<BootInstant> {
        Some(self.place.lease().deadline()).filter(|deadline| *deadline != BootInstant::NEVER)
    }

    /// The time until [`deadline`](Self::deadline); zero when it has passed.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(BootInstant::remaining)
    }

    /// Waits until the lock is lost, and tells why.
    ///
    /// Fires within 50 ms of the deadline, or of the store's word that the session or this entry
    /// is gone. A loss is final.
    ///
    /// # Cancel safety
    ///
    /// Only listens.
    pub async fn lost(&self) -> LossReason {
        self.place.wait_lost().await
    }

    /// Runs `future` as long as the lock is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] or [`ErrorKind::Closed`]: the lock was lost. The future was dropped at
    /// the await where it stood; what it had done until then is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. The lock stays held.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// let sum = guard.protect(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.loss("protect", reason)),
            output = future => Ok(output),
        }
    }

    /// Releases the lock and waits for the store to confirm.
    ///
    /// In no case is the lock held afterwards as far as this process is concerned.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`], [`ErrorKind::Closed`]: it had been lost before, for the
    ///   [reason](Error::loss_reason) given. What was done under it may have overlapped with another holder.
    /// * Others, with [`Effect::Unknown`](crate::Effect::Unknown): the store has not confirmed; the
    ///   library goes on trying until the session ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release going on in the background.
    pub async fn release(self) -> Result<()> {
        let Self { place, name, .. } = self;
        let scheme = place.session().backend.scheme();
        place.give_up().await.map_err(|error| error.on_key(name.name()).on_backend(scheme))
    }

    pub(crate) fn loss(&self, operation: &'static str, reason: LossReason) -> Error {
        // It was acquired, and whatever ran under it may have run in part.
        Error::lost(operation, reason)
            .with_effect(Effect::Applied)
            .on_key(self.name())
            .on_backend(self.place.session().backend.scheme())
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("token", &self.token)
            .field("is_held", &self.is_held())
            .finish()
    }
}
