//! `with` and `with_value` of what is acquired: a lock, several locks, a permit, the leadership.

use std::convert::identity;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use super::{Taking, all, taken, taking, under};
use crate::error::{Error, Result};
use crate::recipe::body::only;
use crate::recipe::election::{Election, Leadership};
use crate::recipe::lock::{Lock, LockGuard};
use crate::recipe::multi::{MultiLock, Shared};
use crate::recipe::semaphore::{Permit, Semaphore};

impl Lock {
    /// Runs `body` under the lock: what [`synchronized`](crate::synchronized) does for a whole function, for a block whose lock's
    /// name is known only at run time.
    ///
    /// The lock is acquired before the body begins, within `timeout`, which is as for [`acquire`](Self::acquire). It is released when
    /// the body has ended, before the call returns. The body may borrow from its surroundings. The future is `Send` where the
    /// body's is, and does not borrow the `Lock`.
    ///
    /// If the lock is lost, the body is dropped at its current await, and the call returns the error. If the body has no more awaits, it
    /// ends, and its success is replaced by the error. The body's own error is never replaced.
    ///
    /// [`with_value`](Self::with_value) is for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// That of the body, or one of the library, turned into `E`:
    ///
    /// * Those of [`acquire`](Self::acquire), with [`Effect::None`](crate::Effect::None): the body never began, and
    ///   [`body_ran`](Error::body_ran) is false.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): the lock was lost. With
    ///   [`Effect::Unknown`](crate::Effect::Unknown) the body began, and was dropped at an await. With
    ///   [`Effect::Applied`](crate::Effect::Applied) the body ended, but the lock was lost before that.
    ///
    /// If the body ended while the lock was held, the call returns the body's result, whatever becomes of the release: if the store
    /// does not confirm the release, a warning is logged, and the release goes on in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body at its current await. The lock, or the place in the queue, is given up in the
    /// background. The same happens when the body panics. If the body has ended already, only its result is dropped, and the release goes
    /// on: so limit the time within the body, and not that of the whole call.
    ///
    /// # Errors of other crates
    ///
    /// A type of another crate cannot be made from an [`Error`] of this one. Use an error type of your own that has both, or
    /// `Box<dyn std::error::Error + Send + Sync>`. A `Result` that is returned to [`with_value`](Self::with_value) counts as a success, so
    /// a loss replaces it.
    ///
    /// An error that the body returns is not changed. If it is an [`Error`] of a call in the body, it speaks of that call:
    /// [`body_ran`](Error::body_ran) may be false although this body began.
    ///
    /// # Not guaranteed
    ///
    /// A body is stopped only at an await. Where its writes must not overlap with those of the next holder, send the guard's
    /// [token](crate::Grant::token) with them. Locks are not re-entrant: a body that acquires the same lock waits for itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// use std::time::Duration;
    ///
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// # let (volume, mut written) = ("7", None);
    /// let lock = coordinator.lock(format!("vol-{volume}"))?;
    /// lock.with(Some(Duration::from_secs(5)), async |guard| -> coordination::Result<()> {
    ///     written = Some(guard.token());
    ///     Ok(())
    /// })
    /// .await?;
    /// assert!(written.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// With an error type of one's own, which the function's return type names:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # enum StorageError { Lock(coordination::Error), Size(std::num::ParseIntError) }
    /// # impl From<coordination::Error> for StorageError {
    /// #     fn from(error: coordination::Error) -> Self { Self::Lock(error) }
    /// # }
    /// # impl From<std::num::ParseIntError> for StorageError {
    /// #     fn from(error: std::num::ParseIntError) -> Self { Self::Size(error) }
    /// # }
    /// async fn resize(lock: &coordination::Lock, gib: &str) -> Result<u64, StorageError> {
    ///     lock.with(Some(Duration::from_secs(5)), async |_| Ok(gib.parse()?)).await
    /// }
    /// ```
    pub fn with<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&LockGuard) -> Result<T, E>,
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
    /// let sum = coordinator.lock("vol-7")?.with_value(None, async |_| 1 + 1).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub fn with_value<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&LockGuard) -> T,
    {
        under(taking(Ok(vec![self.clone()]), timeout), only, Ok, body)
    }

    /// [`with`](Self::with), with the lock held shared: see [`acquire_shared`](Self::acquire_shared).
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with).
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
    /// let lock = coordinator.lock("catalogue")?;
    /// lock.with_shared(None, async |_| -> coordination::Result<()> {
    ///     // Others read at the same time.
    ///     assert!(lock.try_acquire_shared().await?.is_some());
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn with_shared<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&LockGuard) -> Result<T, E>,
    {
        under(taking(Ok(vec![Shared(self.clone())]), timeout), only, identity, body)
    }

    /// [`with_value`](Self::with_value), with the lock held shared: see [`acquire_shared`](Self::acquire_shared).
    ///
    /// # Errors
    ///
    /// Those of [`with_value`](Self::with_value).
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
    /// let lock = coordinator.lock("catalogue")?;
    /// assert!(lock.with_value_shared(None, async |guard| guard.is_shared()).await?);
    /// # Ok(()) }
    /// ```
    pub fn with_value_shared<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&LockGuard) -> T,
    {
        under(taking(Ok(vec![Shared(self.clone())]), timeout), only, Ok, body)
    }
}

impl MultiLock {
    /// Runs `body` under all the locks, as [`Lock::with`] does under one. The body gets the guards in the order of their names; the
    /// first one that is lost ends it.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) and [`Lock::with`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["account-2", "account-1"])?;
    /// both.with(None, async |guards| -> coordination::Result<()> {
    ///     assert_eq!(guards[0].name(), "account-1");
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn with<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&[LockGuard]) -> Result<T, E>,
    {
        under(taking(Ok(self.locks.clone()), timeout), all, identity, body)
    }

    /// [`with`](Self::with), for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["account-2", "account-1"])?;
    /// assert_eq!(both.with_value(None, async |guards| guards.len()).await?, 2);
    /// # Ok(()) }
    /// ```
    pub fn with_value<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&[LockGuard]) -> T,
    {
        under(taking(Ok(self.locks.clone()), timeout), all, Ok, body)
    }

    /// [`with`](Self::with), with all the locks held shared: see [`acquire_shared`](Self::acquire_shared).
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["a", "b"])?;
    /// both.with_shared(None, async |guards| -> coordination::Result<()> {
    ///     assert!(guards.iter().all(|guard| guard.is_shared()));
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn with_shared<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&[LockGuard]) -> Result<T, E>,
    {
        under(taking(Ok(self.shares()), timeout), all, identity, body)
    }

    /// [`with_value`](Self::with_value), with all the locks held shared: see [`acquire_shared`](Self::acquire_shared).
    ///
    /// # Errors
    ///
    /// Those of [`with_value`](Self::with_value).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let both = coordinator.locks(["a", "b"])?;
    /// assert!(both.with_value_shared(None, async |guards| guards[1].is_shared()).await?);
    /// # Ok(()) }
    /// ```
    pub fn with_value_shared<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&[LockGuard]) -> T,
    {
        under(taking(Ok(self.shares()), timeout), all, Ok, body)
    }
}

impl Semaphore {
    /// Runs `body` under one permit, as [`Lock::with`] does under a lock. For several permits, acquire them and use
    /// [`Permit::with`].
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) and [`Lock::with`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 3)?;
    /// uploads
    ///     .with(None, async |permit| -> coordination::Result<()> {
    ///         println!("nobody else has slot {}", permit.slot());
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn with<T, E, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, B>
    where
        E: From<Error>,
        B: AsyncFnOnce(&Permit) -> Result<T, E>,
    {
        under(taking(Ok(vec![self.clone()]), timeout), only, identity, body)
    }

    /// [`with`](Self::with), for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 3)?;
    /// assert_eq!(uploads.with_value(None, async |permit| permit.slot()).await?, 0);
    /// # Ok(()) }
    /// ```
    pub fn with_value<T, B>(
        &self,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, B>
    where
        B: AsyncFnOnce(&Permit) -> T,
    {
        under(taking(Ok(vec![self.clone()]), timeout), only, Ok, body)
    }
}

impl Election {
    /// [Campaigns](Self::campaign) with this value, runs `body` while the caller leads, and resigns, as [`Lock::with`] does under a
    /// lock.
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign) and [`Lock::with`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// election
    ///     .with("http://host-1:8080", None, async |leadership| -> coordination::Result<()> {
    ///         println!("this is term {}", leadership.term());
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn with<V, T, E, B>(
        &self,
        value: &V,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T, E>> + use<V, T, E, B>
    where
        V: Serialize + ?Sized,
        E: From<Error>,
        B: AsyncFnOnce(&Leadership) -> Result<T, E>,
    {
        under(self.leading(value, timeout), only, identity, body)
    }

    /// [`with`](Self::with), for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// assert!(election.with_value("host-1", None, async |leadership| leadership.is_leader()).await?);
    /// # Ok(()) }
    /// ```
    pub fn with_value<V, T, B>(
        &self,
        value: &V,
        timeout: Option<Duration>,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<V, T, B>
    where
        V: Serialize + ?Sized,
        B: AsyncFnOnce(&Leadership) -> T,
    {
        under(self.leading(value, timeout), only, Ok, body)
    }

    fn leading<V: Serialize + ?Sized>(
        &self,
        value: &V,
        timeout: Option<Duration>,
    ) -> Taking<Leadership> {
        let (election, request) = (self.clone(), self.request("campaign", value));
        Box::pin(async move { taken(vec![election.stand(&request?, timeout).await?]).await })
    }
}
