//! Blocking calls, for programs without async code: each call blocks its thread until it is done.
//!
//! Coordinator, lock and semaphore have blocking types here. For every other recipe, take it from
//! [`Coordinator::as_async`] and [`wait`] for its calls.
//!
//! The session runs on a thread of its own, so no runtime is needed. Within a runtime, a call blocks one of
//! its worker threads. With `memory://` on a single-threaded runtime it would wait for itself, because that
//! store runs on the caller's runtime.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//!
//! fn main() -> coordination::Result<()> {
//!     let coordinator = coordination::blocking::Coordinator::connect("memory://")?;
//!     let guard = coordinator.lock("vol-7")?.acquire(Some(Duration::from_secs(5)))?;
//!     println!("holding {} with token {}", guard.name(), guard.token());
//!     coordination::blocking::release(guard)?;
//!     coordinator.stop()
//! }
//! ```

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::recipe::multi::{Shared, Take};
use crate::{Config, Contender, LockGuard, Permit, Result};

/// Blocks this thread until a call of an async recipe is done.
///
/// Use it only for futures of this library, and for futures made only of those: one that needs a runtime
/// panics or waits for ever. The [module's](self) remarks on calls within a runtime apply.
///
/// # Examples
///
/// ```
/// use coordination::blocking::{self, wait};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let locks = coordinator.as_async().locks(["account-2", "account-1"])?;
///     let guard = wait(locks.acquire(None))?;
///     println!("holding {} locks", guard.guards().len());
///     wait(guard.release())?;
///     coordinator.stop()
/// }
/// ```
pub fn wait<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}

/// [`crate::Coordinator`] with blocking calls.
#[derive(Clone, Debug)]
pub struct Coordinator(crate::Coordinator);

impl Coordinator {
    /// [`crate::Coordinator::connect`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::connect`].
    pub fn connect(url: &str) -> Result<Self> {
        wait(crate::Coordinator::connect(url)).map(Self)
    }

    /// [`Config::connect`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`].
    pub fn connect_with(config: Config) -> Result<Self> {
        wait(config.connect()).map(Self)
    }

    /// The same coordinator with async calls.
    pub fn as_async(&self) -> &crate::Coordinator {
        &self.0
    }

    /// [`crate::Coordinator::install`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::install`].
    pub fn install(&self) -> Result<()> {
        self.0.install()
    }

    /// [`crate::Coordinator::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// [`crate::Coordinator::lock_for`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::lock_for`].
    pub fn lock_for(&self, template: &str, values: &impl Serialize) -> Result<Lock> {
        self.0.lock_for(template, values).map(Lock)
    }

    /// [`crate::Coordinator::semaphore`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        self.0.semaphore(name, permits).map(Semaphore)
    }

    /// [`crate::Coordinator::stop`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::stop`].
    pub fn stop(&self) -> Result<()> {
        wait(self.0.stop())
    }
}

impl From<crate::Coordinator> for Coordinator {
    fn from(coordinator: crate::Coordinator) -> Self {
        Self(coordinator)
    }
}

/// [`crate::Lock`] with blocking calls.
#[derive(Clone, Debug)]
pub struct Lock(crate::Lock);

impl Lock {
    /// [`crate::Lock::name`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// [`crate::Lock::acquire`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::acquire`].
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        wait(self.0.acquire(timeout))
    }

    /// [`crate::Lock::try_acquire`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        wait(self.0.try_acquire())
    }

    /// [`crate::Lock::holders`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::holders`].
    pub fn holders(&self) -> Result<Vec<Contender>> {
        wait(self.0.holders())
    }

    /// [`crate::Lock::break_lock`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::break_lock`].
    pub fn break_lock(&self) -> Result<Option<Contender>> {
        wait(self.0.break_lock())
    }
}

/// [`crate::Semaphore`] with blocking calls.
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// [`crate::Semaphore::name`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// [`crate::Semaphore::acquire`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire`].
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<Permit> {
        wait(self.0.acquire(timeout))
    }

    /// [`crate::Semaphore::try_acquire`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        wait(self.0.try_acquire())
    }
}

// For the attribute on a plain `fn`: it waits for the same futures.
impl Take for Lock {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.0.acquire(timeout).await
    }
}

impl Take for Shared<Lock> {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.0.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.0.0.acquire_shared(timeout).await
    }
}

impl Take for Semaphore {
    type Guard = Permit;

    fn name(&self) -> &str {
        self.name()
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<Permit> {
        self.0.acquire(timeout).await
    }
}

impl From<crate::Lock> for Lock {
    fn from(lock: crate::Lock) -> Self {
        Self(lock)
    }
}

/// [`LockGuard::release`], blocking.
///
/// # Errors
///
/// Those of [`LockGuard::release`].
pub fn release(guard: LockGuard) -> Result<()> {
    wait(guard.release())
}
