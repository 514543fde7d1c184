//! Runs a body under guards on this thread: that of a plain `fn` with `#[synchronized]`, and that which is given to a `with`.
//!
//! The body cannot be stopped: a loss is reported when the body has ended.
#![cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]

use std::sync::Arc;
use std::time::Duration;

use super::{Lock, Semaphore, wait};
use crate::recipe::body::{Held, OnLost, Outcomes, converted, only};
use crate::recipe::engine::any_guard::AnyGuard;
use crate::recipe::multi::Take;
use crate::{Error, LockGuard, Permit, Result};

impl Lock {
    /// Like [`crate::Lock::with`], but on this thread. The body cannot be stopped: if the lock is lost while the body runs, a success
    /// is replaced by the error when the body has ended.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::with`]; if the lock was lost, with [`Effect::Applied`](crate::Effect::Applied), because the body ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// fn main() -> coordination::Result<()> {
    ///     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
    ///     let volume = "7".to_owned();
    ///     coordinator.lock(format!("vol-{volume}"))?.with(Some(Duration::from_secs(5)), |guard| -> coordination::Result<()> {
    ///         println!("writes carry the token {}", guard.token());
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn with<T, E: From<Error>>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        under(self.clone(), timeout, body)
    }

    /// Like [`with`](Self::with), for a body that returns no `Result`: like [`crate::Lock::with_value`], but on this thread.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Examples
    ///
    /// ```
    /// fn main() -> coordination::Result<()> {
    ///     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
    ///     assert_eq!(coordinator.lock("vol-7")?.with_value(None, |_| 1 + 1)?, 2);
    ///     Ok(())
    /// }
    /// ```
    pub fn with_value<T>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&LockGuard) -> T,
    ) -> Result<T> {
        under(self.clone(), timeout, |guard| Ok(body(guard)))
    }
}

impl Semaphore {
    /// Like [`crate::Semaphore::with`], but on this thread, as [`Lock::with`] is.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::with`]; if the permit was lost, with [`Effect::Applied`](crate::Effect::Applied), because the body
    /// ended.
    ///
    /// # Examples
    ///
    /// ```
    /// fn main() -> coordination::Result<()> {
    ///     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
    ///     coordinator.semaphore("uploads", 3)?.with(None, |permit| -> coordination::Result<()> {
    ///         println!("nobody else has slot {}", permit.slot());
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn with<T, E: From<Error>>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&Permit) -> Result<T, E>,
    ) -> Result<T, E> {
        under(self.clone(), timeout, body)
    }

    /// Like [`with`](Self::with), for a body that returns no `Result`.
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with) that are not the body's.
    ///
    /// # Examples
    ///
    /// ```
    /// fn main() -> coordination::Result<()> {
    ///     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
    ///     let slot = coordinator.semaphore("uploads", 3)?.with_value(None, |permit| permit.slot())?;
    ///     assert_eq!(slot, 0);
    ///     Ok(())
    /// }
    /// ```
    pub fn with_value<T>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&Permit) -> T,
    ) -> Result<T> {
        under(self.clone(), timeout, |permit| Ok(body(permit)))
    }
}

/// The implementation of them all.
pub(super) fn under<L: Take, T, E: From<Error>>(
    wanted: L,
    timeout: Option<Duration>,
    body: impl FnOnce(&L::Guard) -> Result<T, E>,
) -> Result<T, E> {
    let (held, outcomes) = (Held::new(OnLost::Cancel), converted());
    run(Arc::clone(&held), outcomes, move || match acquire(&held, Ok(vec![wanted]), timeout) {
        Ok(guards) => body(only(guards)),
        Err(error) => outcomes.failed(error),
    })
}

/// [`Held::acquire`], waiting on this thread.
pub fn acquire<T: Take>(
    held: &Held<T::Guard>,
    wanted: Result<Vec<T>>,
    timeout: Option<Duration>,
) -> Result<&[T::Guard]> {
    wait(held.acquire(wanted, timeout))
}

/// [`run`](crate::recipe::body::run), on this thread. A panic in the body releases what is held in the background.
pub fn run<G: AnyGuard, R>(
    held: Arc<Held<G>>,
    outcomes: Outcomes<R>,
    body: impl FnOnce() -> R,
) -> R {
    let (result, release) = held.settle(body(), outcomes);
    if let Some(release) = release {
        wait(release);
    }
    result
}
