//! The same for programs without async code: each call blocks its thread until it is done.
//!
//! The session runs on a thread of its own, so no runtime is needed. Within one, a blocking call holds
//! up a worker thread like any other; with `memory://` on a single-threaded runtime it would wait for
//! itself, as that store runs on the caller's runtime.
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

use std::time::Duration;

use serde::Serialize;

use crate::{Config, Contender, LockGuard, Result};

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
        pollster::block_on(crate::Coordinator::connect(url)).map(Self)
    }

    /// [`Config::connect`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`].
    pub fn connect_with(config: Config) -> Result<Self> {
        pollster::block_on(config.connect()).map(Self)
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

    /// [`crate::Coordinator::stop`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::stop`].
    pub fn stop(&self) -> Result<()> {
        pollster::block_on(self.0.stop())
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
        pollster::block_on(self.0.acquire(timeout))
    }

    /// [`crate::Lock::try_acquire`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        pollster::block_on(self.0.try_acquire())
    }

    /// [`crate::Lock::holders`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::holders`].
    pub fn holders(&self) -> Result<Vec<Contender>> {
        pollster::block_on(self.0.holders())
    }

    /// [`crate::Lock::break_lock`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::break_lock`].
    pub fn break_lock(&self) -> Result<Option<Contender>> {
        pollster::block_on(self.0.break_lock())
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
    pollster::block_on(guard.release())
}
