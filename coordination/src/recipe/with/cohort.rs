//! `with` and `with_value` of a cohort: a body runs in a turn.

use std::convert::identity;
use std::future::Future;
use std::time::Duration;

use super::{taking, under};
use crate::error::{Error, Result};
use crate::recipe::body::only;
use crate::recipe::lock::{Cohort, CohortGuard};
use crate::recipe::multi::Take;

impl Take for Cohort {
    type Guard = CohortGuard;

    fn name(&self) -> &str {
        self.name()
    }

    #[cfg(feature = "macros")]
    fn made_of(self, _template: &'static str) -> Self {
        // No attribute asks for a turn.
        self
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<CohortGuard> {
        self.acquire(timeout).await
    }
}

impl Cohort {
    /// Runs `body` in a turn, as [`Lock::with`](crate::Lock::with) runs it under the lock.
    ///
    /// The turn is waited for within `timeout`, which is as for [`acquire`](Self::acquire). It ends when the body has ended, before
    /// the call returns: the lock is passed on to the next task of the cohort, or released after the last turn of a batch. The body is
    /// dropped at its current await if the lock is lost, and its success is replaced by the error if the lock was lost before
    /// it ended. The future is `Send` where the body's is, and does not borrow the `Cohort`.
    ///
    /// [`with_value`](Self::with_value) is for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// That of the body, or one of the library, turned into `E`: those that [`Lock::with`](crate::Lock::with) lists, with the same
    /// effects.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`](crate::Lock::with): dropping the future drops the body at its current await. The turn, or the place in
    /// the cohort, goes to the next task. The same happens when the body panics.
    ///
    /// # Not guaranteed
    ///
    /// What [`Lock::with`](crate::Lock::with) does not guarantee. A body that waits for another turn of the same cohort waits for
    /// itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let cohort = coordinator.lock("vol-7")?.cohort();
    /// let write = async || {
    ///     let limit = Some(Duration::from_secs(5));
    ///     cohort.with(limit, async |guard| Ok::<_, coordination::Error>(guard.token())).await
    /// };
    /// let (one, other) = tokio::join!(write(), write());
    /// assert_ne!(one?, other?);
    /// # Ok(()) }
    /// ```
    pub fn with<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&CohortGuard) -> Result<T, E>,
    {
        under(taking(Ok(vec![self.clone()]), timeout), only, identity, body)
    }

    /// [`with`](Self::with), for a body that returns no `Result`: the call returns what the body returned, or the library's error.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Cancel safety
    ///
    /// As for [`with`](Self::with).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let cohort = coordinator.lock("vol-7")?.cohort();
    /// assert_eq!(cohort.with_value(None, async |_| 1 + 1).await?, 2);
    /// # Ok(()) }
    /// ```
    pub fn with_value<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&CohortGuard) -> T,
    {
        under(taking(Ok(vec![self.clone()]), timeout), only, Ok, body)
    }
}
