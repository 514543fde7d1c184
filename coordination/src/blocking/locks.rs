//! Shared locks, several locks, many permits, and slots.

use std::time::Duration;

use super::calls::{calls, labelled, made, wraps};
use super::{Coordinator, Lock, Semaphore, wait};
use crate::{Admission, FencingToken, LockGuard, MultiGuard, Occupant, Patience, Permit, Result};

calls! { Lock:
    acquire_shared(timeout: Option<Duration>) -> LockGuard;
    try_acquire_shared() -> Option<LockGuard>;
}

calls! { Semaphore:
    acquire_many(count: u32, timeout: Option<Duration>) -> Permit;
    try_acquire_many(count: u32) -> Option<Permit>;
}

impl Semaphore {
    /// Does the same as [`crate::Semaphore::permits`].
    pub fn permits(&self) -> u32 {
        self.0.permits()
    }

    /// Like [`crate::Semaphore::resize`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::resize`].
    pub fn resize(&mut self, permits: u32) -> Result<()> {
        wait(self.0.resize(permits))
    }
}

impl From<crate::Semaphore> for Semaphore {
    fn from(semaphore: crate::Semaphore) -> Self {
        Self(semaphore)
    }
}

impl Coordinator {
    /// Does the same as [`crate::Coordinator::locks`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::locks`].
    pub fn locks<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock> {
        self.0.locks(names).map(MultiLock)
    }
}

/// [`crate::MultiLock`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let both = coordinator.locks(["account-2", "account-1"])?;
///     let guard = both.acquire(None)?;
///     assert!(coordinator.lock("account-1")?.try_acquire()?.is_none());
///     blocking::release(guard)?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock(crate::MultiLock);

calls! { MultiLock:
    acquire(timeout: Option<Duration>) -> MultiGuard;
    try_acquire() -> Option<MultiGuard>;
    acquire_shared(timeout: Option<Duration>) -> MultiGuard;
    try_acquire_shared() -> Option<MultiGuard>;
}

impl MultiLock {
    /// Does the same as [`crate::MultiLock::names`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }
}

impl From<crate::MultiLock> for MultiLock {
    fn from(locks: crate::MultiLock) -> Self {
        Self(locks)
    }
}

made! {
    Limiter by limiter(name: impl AsRef<str>);
    Limiter by singleton(name: impl AsRef<str>);
}

/// [`crate::Limiter`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::{Admission, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let Admission::Working(slot) = coordinator.singleton("nightly")?.enter()? else {
///         return Ok(());
///     };
///     // … the job …
///     blocking::release(slot)?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter(crate::Limiter);

wraps! { Limiter }

labelled! { Lock Semaphore MultiLock Limiter }

calls! { Limiter:
    enter() -> Admission;
    enter_while(
        interval: Duration,
        keep_waiting: impl FnMut(u32, Duration) -> bool + Send
    ) -> Admission;
    enter_telling(on_standing: impl FnMut(crate::Standing) + Send) -> Admission;
    stored_slots() -> Option<u32>;
    inspect() -> Vec<Occupant>;
    break_grant(token: FencingToken) -> Option<Occupant>;
}

impl Limiter {
    /// Does the same as [`crate::Limiter::slots`].
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self(self.0.slots(slots))
    }

    /// Does the same as [`crate::Limiter::standby`].
    #[must_use]
    pub fn standby(self, standby: u32) -> Self {
        Self(self.0.standby(standby))
    }

    /// Does the same as [`crate::Limiter::patience`].
    #[must_use]
    pub fn patience(self, patience: Patience) -> Self {
        Self(self.0.patience(patience))
    }

    /// Does the same as [`crate::Limiter::latest_wins`].
    #[must_use]
    pub fn latest_wins(self) -> Self {
        Self(self.0.latest_wins())
    }

    /// Like [`crate::Limiter::resize`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Limiter::resize`].
    pub fn resize(&mut self, slots: u32) -> Result<()> {
        wait(self.0.resize(slots))
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::super::release;
    use super::*;
    use crate::Refusal;

    #[test]
    fn threads_share_a_lock() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-shared")?;
        let lock = coordinator.lock("catalogue")?;
        let (one, other) = (lock.acquire_shared(None)?, lock.try_acquire_shared()?);
        let other = other.expect("readers do not exclude each other");
        assert!(one.is_shared() && lock.try_acquire()?.is_none());
        release(one)?;
        release(other)?;
        release(lock.acquire(None)?)?;
        coordinator.stop()
    }

    #[test]
    fn threads_take_several_locks() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-several")?;
        let both = coordinator.locks(["b", "a", "b"])?;
        assert_eq!(both.names().collect::<Vec<_>>(), ["a", "b"]);
        let guard = both.acquire(None)?;
        assert!(both.try_acquire()?.is_none() && both.try_acquire_shared()?.is_none());
        release(guard)?;
        let (one, other) = (both.acquire_shared(None)?, both.try_acquire_shared()?);
        assert!(one.is_held() && other.is_some_and(|other| other.is_held()));
        coordinator.stop()
    }

    #[test]
    fn what_threads_hold_has_a_label() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-labels")?;
        let (lock, other) = (coordinator.lock("a")?, coordinator.lock("b")?);
        let both = coordinator.locks(["a", "b"])?.label("resize")?.acquire(None)?;
        assert_eq!((&*lock.holders()?[0].label, &*other.holders()?[0].label), ("resize", "resize"));
        release(both)?;
        let guard = lock.clone().label("backup")?.acquire(None)?;
        assert_eq!(lock.holders()?[0].label, "backup");
        release(guard)?;
        let uploads = coordinator.semaphore("uploads", 1)?.label("vol-7")?;
        let _permit = uploads.acquire(None)?;
        assert_eq!(uploads.holders()?[0].label, "vol-7");
        let nightly = coordinator.singleton("nightly")?.label("by hand")?;
        let _slot = nightly.enter()?;
        assert_eq!(nightly.inspect()?[0].label, "by hand");
        assert!(nightly.label("two\nlines").is_err());
        coordinator.stop()
    }

    #[test]
    fn threads_take_many_permits() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-permits")?;
        let mut memory = coordinator.semaphore("memory-gib", 8)?;
        let large = memory.acquire_many(6, None)?;
        assert_eq!(large.slots().len(), 6);
        assert!(memory.try_acquire_many(3)?.is_none());
        release(large)?;
        assert!(memory.try_acquire_many(3)?.is_some());
        memory.resize(2)?;
        assert_eq!(memory.permits(), 2);
        coordinator.stop()
    }

    #[test]
    fn threads_enter_a_limiter() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-limiter")?;
        let mut nightly = coordinator.limiter("nightly")?.slots(1).patience(Patience::Never);
        let Admission::Working(slot) = nightly.enter()? else { panic!("nobody else is there") };
        assert_eq!(nightly.inspect()?.len(), 1);
        assert_eq!(nightly.stored_slots()?, Some(1));
        assert!(matches!(nightly.enter()?, Admission::Refused(Refusal::AllBusy)));
        nightly.resize(2)?;
        let mut told = Vec::new();
        let second = nightly.enter_telling(|standing| told.push(standing))?;
        assert!(matches!(second, Admission::Working(_)) && !told.is_empty());
        let third = nightly.enter_while(Duration::from_millis(1), |_, _| false)?;
        assert!(matches!(third, Admission::Refused(_)));
        assert!(nightly.break_grant(slot.token())?.is_some());
        coordinator.stop()
    }
}
