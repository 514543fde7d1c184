//! A lock that tasks of one process pass on among themselves: lock cohorting, with one entry at the store for all who wait.

mod guard;
mod serving;
#[cfg(all(test, feature = "memory"))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::guard::CohortGuard;
use self::serving::{LISTENS_AFTER, Shared};
use super::Lock;
use crate::error::Result;
use crate::recipe::engine::waiting::Waiting;
use crate::session::Purpose;

/// How many turns a batch has if nothing else is said.
const TURNS: u32 = 256;
/// How long after the grant the last turn of a batch may begin if nothing else is said: no longer than a batch goes on without listening
/// for requests to let go.
const TIME: Duration = LISTENS_AFTER;

/// Tasks of one process that pass a lock on among themselves in memory, without asking the store. Made by [`Lock::cohort`], without
/// I/O; cheap to clone. Clones are one cohort.
///
/// A cohort is one contender at the store, however many of its tasks wait. When it is granted the lock, its tasks have turns under
/// that grant, in the order in which they asked: a *batch*. After [so many turns or so much time](Self::batch) the lock is
/// released, and if there are tasks that wait, the cohort queues again, at the end. So it does sooner if it is
/// [asked to let go](CohortGuard::release_requested). This is lock cohorting: where many tasks of a process want one lock all the
/// time, most turns cost no request.
///
/// [`with`](Self::with) runs a block in a turn, and [`acquire`](Self::acquire) waits for the guard of one.
///
/// Tasks of a cohort exclude each other and all other contenders for the lock, in other cohorts or in none. The lock is the same,
/// and it is not re-entrant. Two calls of [`Lock::cohort`] make two cohorts.
///
/// # Not guaranteed
///
/// * *Order across processes.* A task that has asked later may have its turn before a contender of another process that waits
///   already. That one waits for at most one batch of each cohort before it in the queue, and not for one holder of each.
/// * *One number as a token.* The turns of a batch have one number of the store in common. So a turn's token is a
///   [`TurnToken`](crate::TurnToken), a number and a turn, and a resource has to compare both.
/// * *A look at the store before each turn.* That the lock is still there is known by the session's heartbeats and notifications,
///   as for a holder that keeps it. If an operator takes the lock away, turns may begin until that is noticed (T3 of
///   `docs/guarantees.md`), with tokens that are smaller than that of the next holder.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::{Coordinator, Fence};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = Coordinator::connect("memory://").await?;
/// let cohort = coordinator.lock("vol-7")?.cohort();
/// let volume = std::sync::Arc::new(Fence::new());
///
/// let tasks = (0..100).map(|_| {
///     let (cohort, volume) = (cohort.clone(), volume.clone());
///     tokio::spawn(async move {
///         let guard = cohort.acquire(Some(Duration::from_secs(5))).await?;
///         assert!(guard.is_held() && volume.check(guard.token()).is_ok());
///         guard.release().await
///     })
/// });
/// for task in tasks.collect::<Vec<_>>() {
///     task.await.expect("it does not panic")?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cohort {
    shared: Arc<Shared>,
}

impl Lock {
    /// Tasks of this process that pass this lock on among themselves. No I/O.
    ///
    /// Its clones are handed to those tasks; another call makes another cohort, which contends with the first one as strangers do.
    /// A batch has 256 turns and 200 ms, unless [`Cohort::batch`] says something else. What the cohort enters at the store has the
    /// lock's [label](Self::label).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let cohort = lock.cohort();
    /// let guard = cohort.acquire(None).await?;
    /// assert_eq!(lock.holders().await?[0].token, guard.token().number());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn cohort(&self) -> Cohort {
        Cohort::new(self.clone(), TURNS, TIME)
    }
}

impl Cohort {
    fn new(lock: Lock, turns: u32, time: Duration) -> Self {
        Self { shared: Arc::new(Shared::new(lock, turns, time)) }
    }

    /// A cohort for the same lock whose batches have at most so many turns, and at least one, of which none but the first begins
    /// later than `time` after the lock was granted.
    ///
    /// A contender of another process waits for at most `time` and one turn for each cohort before it. Time in which the machine is
    /// suspended does not count for `time`, and is less than a lease: otherwise the lock is lost. The more turns there are, the
    /// fewer requests a turn costs. It is another cohort than the one on which it is called: clones of that stay what they are.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let cohort = coordinator.lock("vol-7")?.cohort().batch(16, Duration::from_millis(50));
    /// # assert_eq!(cohort.name(), "vol-7");
    /// # Ok(()) }
    /// ```
    pub fn batch(self, turns: u32, time: Duration) -> Self {
        Self::new(self.shared.lock.clone(), turns.max(1), time)
    }

    /// The lock's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.shared.lock.name()
    }

    /// Waits for a turn and returns the guard that has it.
    ///
    /// `timeout` is as for [`Lock::acquire`]; zero is a try, which never joins a batch.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`]. If the store refuses, each task that waits gets the error. That of a task whose time is over does not
    /// say who has the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point gives up the place in the cohort and leaves nothing behind: a turn that was on its way to
    /// it goes to the next task. The cohort keeps its place at the store as long as another task waits.
    ///
    /// # Fairness
    ///
    /// First come, first served among the tasks of the cohort. Contenders of other processes and of other cohorts may be overtaken
    /// by the tasks of one batch.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let cohort = coordinator.lock("vol-7")?.cohort();
    /// let (first, second) = (cohort.acquire(None).await?, cohort.acquire(None));
    /// let token = first.token();
    /// let (released, second) = tokio::join!(first.release(), second);
    /// released?;
    /// assert!(second?.token() > token);
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<CohortGuard> {
        let waiting = Waiting::within(timeout);
        if waiting == Waiting::Never {
            return Ok(CohortGuard::alone(self.shared.lock.acquire(timeout).await?.into_grant()));
        }
        self.shared.lock.queue.named(self.wait(waiting).await)
    }

    /// Acquires the lock if nobody holds it or waits for it; returns `None` otherwise.
    ///
    /// It asks the store once, as [`Lock::try_acquire`] does, and its turn is a batch of its own: nothing is passed on from it.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let cohort = coordinator.lock("vol-7")?.cohort();
    /// let guard = cohort.acquire(None).await?;
    /// assert!(cohort.try_acquire().await?.is_none());
    /// guard.release().await?;
    /// assert!(cohort.try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<CohortGuard>> {
        let guard = self.shared.lock.try_acquire().await?;
        Ok(guard.map(|guard| CohortGuard::alone(guard.into_grant())))
    }

    async fn wait(&self, waiting: Waiting) -> Result<CohortGuard> {
        let session = self.shared.session();
        session.check_open("acquire")?;
        let mut waiter = self.shared.enter();
        // Only now: a stop that has begun before is seen here, and one that begins later finds this among those who wait.
        session.admit("acquire", Purpose::Work)?;
        let limit = waiting.limit(session.call_timeout());
        tokio::select! {
            biased;
            answer = &mut waiter.answer => match answer {
                Ok(answer) => answer?.checked(),
                // The task that acts for the cohort has ended with its runtime.
                Err(_) => Err(session.ended("acquire")),
            },
            () = self.shared.lock.queue.out_of_time(limit) => Err(waiter.too_late(limit)),
        }
    }
}

impl fmt::Debug for Cohort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cohort")
            .field("name", &self.name())
            .field("turns", &self.shared.turns)
            .field("time", &self.shared.time)
            .finish_non_exhaustive()
    }
}
