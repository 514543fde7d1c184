//! Several locks at once: all of them, or none.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::grant::{Grant, TimedRelease};
use super::lock::{Lock, LockGuard};
use super::semaphore::{Permit, Semaphore};
use crate::coordinator::Coordinator;
use crate::error::{Error, ErrorKind, LossReason, NameError, Result};

impl Coordinator {
    /// The locks of these names, to be taken together. No I/O.
    ///
    /// They are sorted by name, byte by byte, and a name that is given twice counts once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: there is no name, or one of them is what [`lock`](Self::lock) refuses.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["account-2", "account-1"])?;
    /// assert_eq!(both.names().collect::<Vec<_>>(), ["account-1", "account-2"]);
    /// # Ok(()) }
    /// ```
    pub fn locks<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock> {
        let locks = names.into_iter().map(|name| self.lock(name)).collect::<Result<Vec<_>>>()?;
        if locks.is_empty() {
            return Err(NameError::NoNames.into());
        }
        Ok(MultiLock { locks: in_order(locks) })
    }
}

/// Several locks that are taken together. Made by [`Coordinator::locks`], without I/O; cheap to clone.
///
/// They are taken one after the other in the order of their names, the same in every process, so that
/// callers who name the same locks in different orders do not wait for each other in a circle. Each is a
/// [`Lock`] like any other, and may be taken alone.
///
/// This does not extend to a caller who holds one of them already, or a guard that was taken before: locks
/// are not re-entrant, and who holds one thing while waiting for another can wait in a circle.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let both = coordinator.locks(["account-2", "account-1"])?;
/// let guard = both.acquire(Some(Duration::from_secs(5))).await?;
/// assert!(guard.is_held());
/// assert!(coordinator.lock("account-1")?.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    /// Invariant: in order of their names, each once, and at least one.
    locks: Vec<Lock>,
}

impl MultiLock {
    /// The names in the order in which they are taken, with the coordinator's prefix.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(Lock::name)
    }

    /// Waits for all the locks and returns the guard that holds them.
    ///
    /// `timeout` bounds the whole call; `None` waits for ever; zero asks for each once, like
    /// [`try_acquire`](Self::try_acquire). On return all are held, each until it is released, dropped or
    /// lost. On an error nothing is held: what was taken is being released in the background.
    ///
    /// While it waits for one it holds those whose names come before.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: not all of them were free in time. The error names the one it waited for.
    /// * [`ErrorKind::Lost`], [`ErrorKind::Closed`]: one that had been taken was lost before all were. With
    ///   [`Effect::None`](crate::Effect::None): nothing ran under it.
    /// * The others of [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases what was taken, in the background, and gives up the place where it waits.
    ///
    /// # Fairness
    ///
    /// Each lock is first come, first served. Who asks for several queues for the second one only once the
    /// first is taken, so others may get that one before.
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<MultiGuard> {
        take_all(&self.locks, timeout).await.map(MultiGuard::new)
    }

    /// Takes all the locks if nobody holds one of them or waits for it; `None` otherwise.
    ///
    /// One round trip to the store for each lock, one after the other.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        or_none(self.acquire(Some(Duration::ZERO)).await)
    }

    /// Waits for a share of each lock: others may have one too, and nobody has one of them for himself.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Fairness
    ///
    /// Each lock as in [`Lock::acquire_shared`].
    pub async fn acquire_shared(&self, timeout: Option<Duration>) -> Result<MultiGuard> {
        let shares: Vec<_> = self.locks.iter().cloned().map(Shared).collect();
        take_all(&shares, timeout).await.map(MultiGuard::new)
    }

    /// Takes a share of each lock if nobody has one of them for himself or waits for that; `None` otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_shared(&self) -> Result<Option<MultiGuard>> {
        or_none(self.acquire_shared(Some(Duration::ZERO)).await)
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("names", &self.names().collect::<Vec<_>>()).finish()
    }
}

/// Holds several locks, or a share of each; releases them when dropped.
///
/// Each is a [`LockGuard`] with a token of its own, see [`guards`](Self::guards). As all of one coordinator
/// live in one session they are mostly lost together, but an operator can break one alone.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<LockGuard>,
}

impl MultiGuard {
    fn new(guards: Vec<LockGuard>) -> Self {
        Self { guards }
    }

    /// The guard of each lock, in order of their names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Whether all of them are held at this very moment; see [`Grant::is_held`].
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// Waits until one of them is lost, and tells why; see [`Grant::lost`].
    ///
    /// The others are still held then, unless the session was lost.
    ///
    /// # Cancel safety
    ///
    /// Only listens.
    pub async fn lost(&self) -> LossReason {
        first_lost(&self.guards).await.1
    }

    /// Runs `future` as long as all of them are held; see [`Grant::protect`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] or [`ErrorKind::Closed`]: one was lost, and the error names it. The future was
    /// dropped at the await where it stood; what it had done until then is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. What is held stays held.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output> {
        protect_all(&self.guards, future).await
    }

    /// Releases all of them, beginning with the last, and waits for the store to confirm.
    ///
    /// In no case is one of them held afterwards as far as this process is concerned.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`]: of one that had been lost, if there is such a one; else the first
    /// that was not confirmed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release going on in the background.
    pub async fn release(self) -> Result<()> {
        release_all(self.guards).await
    }

    /// Lets go of all of them, `held_for` after the last one was granted; see [`LockGuard::release_after`].
    ///
    /// The answer has one for each lock, in order of their names.
    pub fn release_after(self, held_for: Duration) -> Vec<TimedRelease> {
        let granted = self.guards.iter().map(|guard| guard.since()).max();
        let end = granted.and_then(|granted| granted.checked_add(held_for));
        self.guards.into_iter().map(|guard| guard.into_grant().release_at(end)).collect()
    }
}

/// What can be taken together with others of its type.
#[cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]
pub trait Take: Send + Sync {
    /// What holding one looks like.
    type Guard: Deref<Target = Grant> + Send + Sync;

    /// What the order goes by.
    fn name(&self) -> &str;

    /// Waits for it; zero tries once.
    fn take(&self, timeout: Option<Duration>) -> impl Future<Output = Result<Self::Guard>> + Send;
}

impl Take for Lock {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.acquire(timeout).await
    }
}

/// A share of a lock.
#[cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]
#[derive(Debug)]
pub struct Shared<L>(pub(crate) L);

impl Take for Shared<Lock> {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.0.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.0.acquire_shared(timeout).await
    }
}

impl Take for Semaphore {
    type Guard = Permit;

    fn name(&self) -> &str {
        self.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<Permit> {
        self.acquire(timeout).await
    }
}

/// Sorted by name, each name once: who takes several in this order never waits in a circle.
pub(crate) fn in_order<T: Take>(mut wanted: Vec<T>) -> Vec<T> {
    wanted.sort_by(|one, other| one.name().cmp(other.name()));
    wanted.dedup_by(|one, other| one.name() == other.name());
    wanted
}

/// Takes one after the other, or nothing.
pub(crate) async fn take_all<T: Take>(
    wanted: &[T],
    timeout: Option<Duration>,
) -> Result<Vec<T::Guard>> {
    let start = Instant::now();
    let mut guards = Vec::with_capacity(wanted.len());
    for next in wanted {
        let guard = tokio::select! {
            biased;
            (grant, reason) = first_lost(&guards) => return Err(lost_before(grant, reason)),
            guard = next.take(left(timeout, start, next.name())?) => guard?,
        };
        guards.push(guard);
    }
    // A deadline passes without telling anybody, also while the last one is granted.
    let lost = guards.iter().find_map(|guard| Some((&**guard, guard.place().lost()?)));
    match lost {
        Some((grant, reason)) => Err(lost_before(grant, reason)),
        None => Ok(guards),
    }
}

/// What is left of the time for all; zero from the start on is a try.
fn left(timeout: Option<Duration>, start: Instant, name: &str) -> Result<Option<Duration>> {
    let Some(limit) = timeout.filter(|limit| !limit.is_zero()) else { return Ok(timeout) };
    match limit.saturating_sub(start.elapsed()) {
        Duration::ZERO => {
            let message = "those that come before it took all the time given";
            Err(Error::new(ErrorKind::Timeout, "acquire", message).on_key(name))
        }
        left => Ok(Some(left)),
    }
}

fn lost_before(grant: &Grant, reason: LossReason) -> Error {
    // Nothing ran under it, so this is not `Grant::loss`.
    let backend = grant.place().session().backend.scheme();
    Error::lost("acquire", reason).on_key(grant.name()).on_backend(backend)
}

fn or_none<T>(taken: Result<T>) -> Result<Option<T>> {
    match taken {
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
        taken => taken.map(Some),
    }
}

/// Waits for the first of them that is lost; for ever if there are none.
async fn first_lost<G: Deref<Target = Grant>>(guards: &[G]) -> (&Grant, LossReason) {
    let listen = |guard| {
        let grant: &Grant = guard;
        Box::pin(async move { (grant, grant.lost().await) })
    };
    let mut losses: Vec<_> = guards.iter().map(|guard| listen(guard)).collect();
    poll_fn(|context| {
        let mut polled = losses.iter_mut().map(|loss| loss.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Runs `body` until the first of them is lost.
pub(crate) async fn protect_all<G: Deref<Target = Grant>, F: Future>(
    guards: &[G],
    body: F,
) -> Result<F::Output> {
    tokio::select! {
        biased;
        (grant, reason) = first_lost(guards) => Err(grant.loss("protect", reason)),
        output = body => Ok(output),
    }
}

/// Releases all, beginning with the last, without waiting for one before the next; answers a loss, or
/// else the first failure.
pub(crate) async fn release_all<G: Deref<Target = Grant>>(guards: Vec<G>) -> Result<()> {
    let release = |guard: G| Box::pin(async move { guard.release().await });
    let mut releases: Vec<_> = guards.into_iter().rev().map(release).collect();
    let mut failures = Vec::new();
    poll_fn(|context| {
        releases.retain_mut(|release| match release.as_mut().poll(context) {
            Poll::Ready(outcome) => {
                failures.extend(outcome.err());
                false
            }
            Poll::Pending => true,
        });
        if releases.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let loss = failures.iter().position(|error| error.loss_reason().is_some()).unwrap_or_default();
    failures.into_iter().nth(loss).map_or(Ok(()), Err)
}
