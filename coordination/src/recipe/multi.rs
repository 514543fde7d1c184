//! Several locks at once: all of them, or none.

use std::error::Error as _;
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::any_guard::AnyGuard;
use super::engine::grant::TimedRelease;
use super::engine::loss::LossWatch;
use super::engine::protect::{Protected, first_lost};
use super::engine::waiting::Waiting;
use super::lock::{Lock, LockGuard};
use super::semaphore::{Permit, Semaphore};
use crate::coordinator::Coordinator;
use crate::error::{Effect, Error, ErrorKind, LossReason, NameError, Result};

impl Coordinator {
    /// The locks of these names, to be acquired together. No I/O.
    ///
    /// They are sorted by the bytes of their names, and a name that is given twice counts once.
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

/// Several locks that are acquired together. Made by [`Coordinator::locks`], without I/O; cheap to clone.
///
/// They are acquired one after the other in the order of their names, which is the same in every process, so
/// that callers whose sets of locks overlap do not deadlock. Each is a [`Lock`] like any other, and may also
/// be acquired alone.
///
/// This order does not help a caller that already holds one of these locks or another one: locks are not
/// re-entrant, and a caller that holds one lock while it waits for another can deadlock.
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
    /// Invariant: sorted by name, each name once, and at least one.
    pub(super) locks: Vec<Lock>,
}

impl MultiLock {
    /// The names in the order in which they are acquired, with the coordinator's prefix.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(Lock::name)
    }

    /// Gives what is acquired by this handle from now on a [label](Lock::label), the same in each of the locks.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::label`].
    pub fn label(self, label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        let labelled = self.locks.into_iter().map(|lock| lock.label(label));
        Ok(Self { locks: labelled.collect::<Result<_>>()? })
    }

    /// Waits for all the locks and returns the guard that holds them.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever; zero asks for each lock once, like
    /// [`try_acquire`](Self::try_acquire). On success all locks are held, each until it is released, dropped
    /// or lost. On an error none is held: those that had been acquired are being released in the background.
    ///
    /// While the call waits for one lock, it holds those before it in the order of names.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: not all of them were free in time. The error names the one that the call
    ///   waited for.
    /// * [`ErrorKind::Lost`], [`ErrorKind::Closed`]: one was lost before all were acquired. The error has
    ///   [`Effect::None`](crate::Effect::None), as nothing ran under it.
    /// * The other errors of [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue in which it waits, and releases in the background
    /// what it had acquired.
    ///
    /// # Fairness
    ///
    /// Each lock is first come, first served. The call queues for the second lock only when it has the first,
    /// so others may get the second one before it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let _held = coordinator.lock("account-2")?.acquire(None).await?;
    /// let both = coordinator.locks(["account-1", "account-2"])?;
    /// let error = both.acquire(Some(Duration::from_millis(10))).await.unwrap_err();
    /// assert_eq!((error.kind(), error.key()), (ErrorKind::Timeout, Some("account-2")));
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<MultiGuard> {
        take_all(&self.locks, timeout).await.map(MultiGuard::new)
    }

    /// Acquires all the locks if nobody holds any of them or waits for one; returns `None` otherwise.
    ///
    /// It asks the store once for each lock, one after the other.
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

    /// Waits for all the locks as a shared holder; see [`Lock::acquire_shared`].
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
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["catalogue", "prices"])?;
    /// let (one, other) = (both.acquire_shared(None).await?, both.acquire_shared(None).await?);
    /// assert!(one.is_held() && other.is_held());
    /// assert!(coordinator.lock("prices")?.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn acquire_shared(&self, timeout: Option<Duration>) -> Result<MultiGuard> {
        take_all(&self.shares(), timeout).await.map(MultiGuard::new)
    }

    /// Acquires all the locks as a shared holder if nobody holds one of them exclusively or waits to do so;
    /// returns `None` otherwise.
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

    /// The same locks, to be acquired in shared mode.
    pub(super) fn shares(&self) -> Vec<Shared<Lock>> {
        self.locks.iter().cloned().map(Shared).collect()
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("names", &self.names().collect::<Vec<_>>()).finish()
    }
}

/// Holds several locks, exclusively or shared; releases them when dropped.
///
/// Each is a [`LockGuard`] with a token of its own, see [`guards`](Self::guards). They belong to one session
/// and are mostly lost together, but an operator can break a single one.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let guard = coordinator.locks(["account-2", "account-1"])?.acquire(None).await?;
/// // Each has a token of its own, in the order of the names.
/// for lock in guard.guards() {
///     println!("{} with token {}", lock.name(), lock.token());
/// }
/// let sum = guard.protect(async { 1 + 1 }).await?;
/// assert!(guard.is_held() && sum == 2);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    pub(super) guards: Vec<LockGuard>,
}

impl MultiGuard {
    fn new(guards: Vec<LockGuard>) -> Self {
        Self { guards }
    }

    /// The guard of each lock, in order of their names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Whether all of them are held at this moment; see [`Grant::is_held`](crate::Grant::is_held).
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// Waits until one of them is lost, and returns the reason; see [`Grant::lost`](crate::Grant::lost).
    ///
    /// Unless the whole session was lost, the other locks are still held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only listens.
    pub async fn lost(&self) -> LossReason {
        first_lost(watches(&self.guards)).await.1
    }

    /// Runs `future` until it is done, or until one of the locks is lost; see [`Grant::protect`](crate::Grant::protect).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] or [`ErrorKind::Closed`]: one was lost, and the error names it. With
    /// [`Effect::None`], `future` never began; with [`Effect::Unknown`], it was dropped at its current await, and what it
    /// had done before is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. What is held is still held.
    pub fn protect<F: Future>(&self, future: F) -> impl Future<Output = Result<F::Output>> {
        Protected::new(future, watches(&self.guards))
    }

    /// Releases all of them, in reverse order, and waits for the store to confirm.
    ///
    /// Whatever it returns, this process no longer holds any of them afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`]. If several fail: the error of one that had been lost before, else the
    /// first error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        release_all(self.guards).await
    }

    /// Releases all of them `held_for` after the last one was granted; see [`LockGuard::release_after`].
    ///
    /// It returns one value for each lock, in the order of their names.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["sensor-1", "sensor-2"])?;
    /// // Not before 10 ms are over, whoever asks for one of them.
    /// let timed = both.acquire(None).await?.release_after(Duration::from_millis(10));
    /// assert_eq!(timed.len(), 2);
    /// let next = both.acquire(Some(Duration::from_secs(5))).await?;
    /// assert!(next.is_held() && !timed[0].is_held());
    /// # Ok(()) }
    /// ```
    pub fn release_after(self, held_for: Duration) -> Vec<TimedRelease> {
        let granted = self.guards.iter().map(|guard| guard.since()).max();
        let end = granted.and_then(|granted| granted.checked_add(held_for));
        self.guards.into_iter().map(|guard| guard.into_grant().release_at(end)).collect()
    }
}

/// A lock, a shared lock, a semaphore or a cohort: whatever can be acquired together with others of its type.
#[cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]
pub trait Take: Send + Sync + 'static {
    /// The guard that one of this type gives.
    type Guard: AnyGuard;

    /// The name, by which several locks are sorted before they are acquired.
    fn name(&self) -> &str;

    /// Whether it is acquired so that others may hold it at the same time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Notes the template that its name was made of, for the log.
    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self
    where
        Self: Sized;

    /// Acquires it. `None` waits for ever, zero asks once.
    fn take(&self, timeout: Option<Duration>) -> impl Future<Output = Result<Self::Guard>> + Send;
}

impl Take for Lock {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.name()
    }

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        self.of_template(template.into())
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.acquire(timeout).await
    }
}

/// A lock that is to be acquired in shared mode.
#[cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]
#[derive(Debug)]
pub struct Shared<L>(pub(crate) L);

impl Take for Shared<Lock> {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn is_shared(&self) -> bool {
        true
    }

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        Self(self.0.made_of(template))
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.0.acquire_shared(timeout).await
    }
}

/// A lock that is to be acquired exclusively or in shared mode, for a function that asks for some of its locks in each mode.
#[cfg(feature = "macros")]
#[derive(Debug)]
pub enum InEither<L> {
    /// To be acquired exclusively.
    Whole(L),
    /// To be acquired in shared mode.
    Share(Shared<L>),
}

#[cfg(feature = "macros")]
impl<L> Take for InEither<L>
where
    L: Take<Guard = LockGuard>,
    Shared<L>: Take<Guard = LockGuard>,
{
    type Guard = LockGuard;

    fn name(&self) -> &str {
        match self {
            Self::Whole(lock) => lock.name(),
            Self::Share(lock) => lock.name(),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Share(_))
    }

    fn made_of(self, template: &'static str) -> Self {
        match self {
            Self::Whole(lock) => Self::Whole(lock.made_of(template)),
            Self::Share(lock) => Self::Share(lock.made_of(template)),
        }
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        match self {
            Self::Whole(lock) => lock.take(timeout).await,
            Self::Share(lock) => lock.take(timeout).await,
        }
    }
}

impl Take for Semaphore {
    type Guard = Permit;

    fn name(&self) -> &str {
        self.name()
    }

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        self.of_template(template.into())
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<Permit> {
        self.acquire(timeout).await
    }
}

/// Sorts by name and drops repeated names; if a name is asked for exclusively and shared, the exclusive one stays. Callers that
/// acquire several in this order never wait for each other in a circle.
pub(crate) fn in_order<T: Take>(mut wanted: Vec<T>) -> Vec<T> {
    wanted.sort_by(|one, other| {
        one.name().cmp(other.name()).then(one.is_shared().cmp(&other.is_shared()))
    });
    wanted.dedup_by(|one, other| one.name() == other.name());
    wanted
}

const TOO_LATE: &str = "those that come before it took all the time given";

/// Acquires one after the other. If one cannot be acquired, the others are released.
pub(crate) async fn take_all<T: Take>(
    wanted: &[T],
    timeout: Option<Duration>,
) -> Result<Vec<T::Guard>> {
    let start = Instant::now();
    let mut guards = Vec::with_capacity(wanted.len());
    for next in wanted {
        let left = left(timeout, start, next.name())?;
        let guard = tokio::select! {
            biased;
            // Nothing has run under the guards yet.
            (lost, reason) = first_lost(watches(&guards)) => {
                return Err(lost.error("acquire", reason, Effect::None));
            }
            guard = next.take(left) => {
                guard.map_err(|error| if has_judged(&guards, timeout, left) { error } else { unjudged(error) })?
            }
        };
        guards.push(guard);
    }
    // A deadline may have passed unnoticed while the last lock was granted, so all guards are checked once more.
    lost_by_now(&guards, "acquire", Effect::None).map_or(Ok(guards), Err)
}

pub(crate) fn watches<G: AnyGuard>(guards: &[G]) -> Vec<LossWatch> {
    guards.iter().map(|guard| guard.grant().loss_watch()).collect()
}

/// The error of the first of these guards that is lost at this moment.
pub(crate) fn lost_by_now<G: AnyGuard>(
    guards: &[G],
    operation: &'static str,
    stood: Effect,
) -> Option<Error> {
    watches(guards)
        .iter()
        .find_map(|watch| Some(watch.error(operation, watch.loss_reason()?, stood)))
}

/// What is left of the timeout for all locks.
fn left(timeout: Option<Duration>, start: Instant, name: &str) -> Result<Option<Duration>> {
    let left = Waiting::within(timeout).after(start.elapsed());
    let left = left.ok_or_else(|| Error::new(ErrorKind::Timeout, "acquire", TOO_LATE).on_key(name));
    left.map(Waiting::timeout)
}

/// Whether a missing answer about one lock says that the store does not answer. It says nothing of the store if the other locks
/// took most of the timeout, and the time that was left is less than a healthy store may need.
fn has_judged<G: AnyGuard>(
    guards: &[G],
    timeout: Option<Duration>,
    left: Option<Duration>,
) -> bool {
    let (Some(first), Some(timeout), Some(left)) = (guards.first(), timeout, left) else {
        return true;
    };
    let session = first.grant().own_entry().session();
    left >= timeout / 2 || left >= session.call_timeout() || !session.is_connected()
}

/// Turns `Unavailable` into `Timeout`, for a missing answer that says nothing about the store.
fn unjudged(error: Error) -> Error {
    if error.kind() != ErrorKind::Unavailable || error.source().is_some() {
        return error;
    }
    let late = Error::new(ErrorKind::Timeout, "acquire", TOO_LATE).with_effect(error.effect());
    let late = late.on_key(error.key().unwrap_or_default());
    error.backend().into_iter().fold(late, Error::on_backend)
}

fn or_none<T>(taken: Result<T>) -> Result<Option<T>> {
    match taken {
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
        taken => taken.map(Some),
    }
}

/// Releases all guards at once, beginning with the last. If some fail, the error is that of one that had been lost, or else the
/// first one.
pub(crate) async fn release_all<G: AnyGuard>(guards: Vec<G>) -> Result<()> {
    let mut releases: Vec<_> =
        guards.into_iter().rev().map(|guard| Box::pin(guard.give_back())).collect();
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
