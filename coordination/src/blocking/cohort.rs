//! A lock that threads of one process pass on among themselves.

use std::time::Duration;

use super::calls::{calls, wraps};
use super::with::under;
use super::{Lock, wait};
use crate::{CohortGuard, Error, Result};

impl Lock {
    /// Does the same as [`crate::Lock::cohort`].
    pub fn cohort(&self) -> Cohort {
        Cohort(self.0.cohort())
    }
}

/// [`crate::Cohort`] with blocking calls: threads pass a lock on among themselves. Tasks that have a clone of the async cohort of
/// which it is made are in it, too.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use std::time::Duration;
///
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let cohort = coordinator.lock("vol-7")?.cohort();
///     let threads = [(); 4].map(|()| {
///         let cohort = cohort.clone();
///         thread::spawn(move || {
///             let guard = cohort.acquire(Some(Duration::from_secs(5)))?;
///             println!("writes carry the token {}", guard.token());
///             blocking::release(guard)
///         })
///     });
///     for thread in threads {
///         thread.join().expect("no panic")?;
///     }
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Cohort(crate::Cohort);

wraps! { Cohort }

calls! { Cohort:
    acquire(timeout: Option<Duration>) -> CohortGuard;
    try_acquire() -> Option<CohortGuard>;
}

impl Cohort {
    /// Does the same as [`crate::Cohort::batch`].
    #[must_use]
    pub fn batch(self, turns: u32, time: Duration) -> Self {
        Self(self.0.batch(turns, time))
    }

    /// Like [`crate::Cohort::with`], but on this thread, as [`Lock::with`] is.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Cohort::with`]; if the lock was lost, with [`Effect::Applied`](crate::Effect::Applied), because the body ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// fn main() -> coordination::Result<()> {
    ///     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
    ///     let cohort = coordinator.lock("vol-7")?.cohort();
    ///     cohort.with(Some(Duration::from_secs(5)), |guard| -> coordination::Result<()> {
    ///         println!("writes carry the token {}", guard.token());
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn with<T, E: From<Error>>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&CohortGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        under(self.0.clone(), timeout, body)
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
    ///     let cohort = coordinator.lock("vol-7")?.cohort();
    ///     assert_eq!(cohort.with_value(None, |guard| guard.token().turn())?, 0);
    ///     Ok(())
    /// }
    /// ```
    pub fn with_value<T>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&CohortGuard) -> T,
    ) -> Result<T> {
        under(self.0.clone(), timeout, |guard| Ok(body(guard)))
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::thread;

    use super::super::{Coordinator, release};
    use super::*;
    use crate::{Effect, ErrorKind, LossReason};

    const SOON: Duration = Duration::from_millis(10);
    /// Longer than anything takes.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn threads_pass_a_lock_on() -> Result<()> {
        const THREADS: usize = 4;
        let coordinator = Coordinator::connect("memory://blocking-cohort")?;
        let lock = coordinator.lock("vol-7")?;
        let cohort = lock.cohort().batch(u32::MAX, LONG);
        assert_eq!(cohort.name(), lock.name());
        let first = cohort.acquire(None)?;
        assert!(cohort.try_acquire()?.is_none());
        let late = cohort.acquire(Some(SOON)).map(drop);
        assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::Timeout));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let cohort = cohort.clone();
                thread::spawn(move || match thread % 2 {
                    0 => cohort.with(Some(LONG), |guard| Ok::<_, Error>(guard.token())),
                    _ => cohort.with_value(Some(LONG), |guard| guard.token()),
                })
            })
            .collect();
        let mut tokens = vec![first.token()];
        release(first)?;
        for thread in threads {
            tokens.push(thread.join().expect("no panic")?);
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), THREADS + 1, "{tokens:?}");
        let tried = cohort.try_acquire()?.expect("it is free");
        release(tried)?;
        assert!(lock.holders()?.is_empty());
        coordinator.stop()
    }

    #[test]
    fn x2c_a_thread_is_told_of_the_loss_when_its_body_has_ended() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-cohort-lost")?;
        let lock = coordinator.lock("vol-7")?;
        let cohort = lock.cohort();
        let lose = |guard: &CohortGuard| {
            assert!(lock.break_lock()?.is_some());
            assert_eq!(wait(guard.lost()), LossReason::EntryDeleted);
            Ok::<_, Error>(guard.token())
        };
        let lost = cohort.with(None, lose).expect_err("it was lost");
        assert_eq!(lost.loss_reason(), Some(LossReason::EntryDeleted));
        assert_eq!((lost.effect(), lost.body_ran()), (Effect::Applied, true));
        let fails = |guard: &CohortGuard| {
            lose(guard)?;
            Err::<(), _>(Error::new(ErrorKind::Quota, "write", "the body's own"))
        };
        let failed = cohort.with(None, fails).expect_err("its own error is not replaced");
        assert_eq!(failed.kind(), ErrorKind::Quota);
        let held = cohort.acquire(None)?;
        let late: Result<()> = cohort.with_value(Some(SOON), |_| unreachable!("it is held"));
        let late = late.expect_err("it is held");
        assert_eq!((late.kind(), late.body_ran()), (ErrorKind::Timeout, false));
        release(held)?;
        coordinator.stop()
    }
}
