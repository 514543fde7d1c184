//! Blocking calls, for programs without async code: each call blocks its thread until it is done.
//!
//! Each recipe has a blocking type here, which its [`Coordinator`] makes. What a recipe gives, such as a guard or a watch, is the same
//! as of its async type: [`release`] takes every guard, and [`wait`] waits for whatever else such a thing awaits.
//!
//! The session runs on a thread of its own, so no runtime is needed. Within a runtime, a call blocks one of
//! its worker threads. But a session that was opened by an async call with `memory://`, or with
//! `heartbeat_on_current_runtime`, runs on its caller's runtime. Then the following holds:
//!
//! * On the thread of a current-thread runtime, a blocking call that has to wait would wait for itself; it fails with
//!   [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). A release that fails so goes on in the background. What has no error
//!   to return, as [`lost`](crate::Grant::lost), must be awaited there. To recognise that thread, the session notes it with each
//!   heartbeat: do not move such a runtime from one thread to another, or the call may wait for ever.
//! * On a multi-thread runtime, even one with a single worker, make the call in `spawn_blocking` or `block_in_place`,
//!   because the task that the call waits for may be queued on the thread that the call blocks.
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

mod calls;
mod cohort;
mod data;
mod guards;
mod locks;
mod parties;
mod wait;
pub(crate) mod with;

use std::time::Duration;

use serde::Serialize;

use self::calls::calls;
pub use self::cohort::Cohort;
pub use self::data::{Counter, OncePer, RateLimiter, SharedValue, WorkQueue};
pub use self::guards::{Guard, release};
pub use self::locks::{Limiter, MultiLock};
pub use self::parties::{Barrier, DoubleBarrier, Election, Group, Latch};
pub use self::wait::wait;
use crate::recipe::multi::{Shared, Take};
use crate::{Config, Contender, LockGuard, Occupant, Permit, Recipe, Result};

/// [`crate::Coordinator`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::{Config, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let mut config = Config::default();
///     config.url = Some("memory://".to_owned());
///     config.prefix = "app-".to_owned();
///     let coordinator = blocking::Coordinator::connect_with(config)?;
///     assert_eq!(coordinator.lock("vol-7")?.name(), "app-vol-7");
///
///     // What has no blocking call is asked of the async coordinator.
///     assert!(coordinator.as_async().member_id().starts_with("app-"));
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator(crate::Coordinator);

impl Coordinator {
    /// Like [`crate::Coordinator::connect`], but blocks the thread until the call is done.
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

    /// Does the same as [`crate::Coordinator::install`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::install`].
    pub fn install(&self) -> Result<()> {
        self.0.install()
    }

    /// Does the same as [`crate::Coordinator::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// Does the same as [`crate::Coordinator::lock_for`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::lock_for`].
    pub fn lock_for(&self, template: &str, values: &impl Serialize) -> Result<Lock> {
        self.0.lock_for(template, values).map(Lock)
    }

    /// Does the same as [`crate::Coordinator::semaphore`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        self.0.semaphore(name, permits).map(Semaphore)
    }

    /// Like [`crate::Coordinator::stop`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::stop`].
    pub fn stop(&self) -> Result<()> {
        wait(self.0.stop())
    }

    /// [`crate::Coordinator::stop_within`], blocking.
    pub fn stop_within(&self, limit: Duration) -> crate::Stopped {
        wait(self.0.stop_within(limit))
    }

    /// [`crate::Coordinator::held`].
    pub fn held(&self) -> usize {
        self.0.held()
    }
}

calls! { Coordinator:
    groups() -> Vec<String>;
    queues() -> Vec<String>;
    rate_limiters() -> Vec<String>;
    values() -> Vec<String>;
    counters() -> Vec<String>;
    once_jobs() -> Vec<String>;
    in_use(recipe: Recipe) -> Vec<String>;
    prune(unused: Duration) -> u64;
}

impl From<crate::Coordinator> for Coordinator {
    fn from(coordinator: crate::Coordinator) -> Self {
        Self(coordinator)
    }
}

/// [`crate::Lock`] with blocking calls.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let lock = coordinator.lock("vol-7")?;
///     let guard = lock.acquire(Some(Duration::from_secs(5)))?;
///     assert!(lock.try_acquire()?.is_none());
///     assert_eq!(lock.holders()?[0].token, guard.token());
///     blocking::release(guard)?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Lock(crate::Lock);

impl Lock {
    /// Does the same as [`crate::Lock::name`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Like [`crate::Lock::acquire`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::acquire`].
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        wait(self.0.acquire(timeout))
    }

    /// Like [`crate::Lock::try_acquire`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        wait(self.0.try_acquire())
    }

    /// Like [`crate::Lock::holders`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::holders`].
    pub fn holders(&self) -> Result<Vec<Contender>> {
        wait(self.0.holders())
    }

    /// Like [`crate::Lock::break_lock`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::break_lock`].
    pub fn break_lock(&self) -> Result<Option<Contender>> {
        wait(self.0.break_lock())
    }

    /// Like [`crate::Lock::request_release`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::request_release`].
    pub fn request_release(&self) -> Result<Vec<Contender>> {
        wait(self.0.request_release())
    }

    /// Like [`crate::Lock::break_grant`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Lock::break_grant`].
    pub fn break_grant(&self, token: crate::FencingToken) -> Result<Option<Contender>> {
        wait(self.0.break_grant(token))
    }
}

/// [`crate::Semaphore`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let uploads = coordinator.semaphore("uploads", 1)?;
///     let permit = uploads.acquire(None)?;
///     assert!(uploads.try_acquire()?.is_none());
///     blocking::release(permit)?;
///     assert!(uploads.try_acquire()?.is_some());
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// Does the same as [`crate::Semaphore::name`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Like [`crate::Semaphore::acquire`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire`].
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<Permit> {
        wait(self.0.acquire(timeout))
    }

    /// Like [`crate::Semaphore::try_acquire`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        wait(self.0.try_acquire())
    }

    /// Like [`crate::Semaphore::stored_permits`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::stored_permits`].
    pub fn stored_permits(&self) -> Result<Option<u32>> {
        wait(self.0.stored_permits())
    }

    /// Like [`crate::Semaphore::holders`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::holders`].
    pub fn holders(&self) -> Result<Vec<Occupant>> {
        wait(self.0.holders())
    }

    /// Like [`crate::Semaphore::break_grant`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::break_grant`].
    pub fn break_grant(&self, token: crate::FencingToken) -> Result<Option<Occupant>> {
        wait(self.0.break_grant(token))
    }
}

// This impl is for `#[synchronized]` on a plain `fn`, which waits for the same futures as the methods above.
impl Take for Lock {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.name()
    }

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        Self(self.0.made_of(template))
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

    fn is_shared(&self) -> bool {
        true
    }

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        Self(self.0.made_of(template))
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

    #[cfg(feature = "macros")]
    fn made_of(self, template: &'static str) -> Self {
        Self(self.0.made_of(template))
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

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::task::Poll;

    use super::*;
    use crate::ErrorKind;

    fn single_threaded() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_call_that_would_wait_for_itself_fails_at_once() {
        single_threaded()
            .block_on(async {
                let coordinator = crate::Coordinator::connect("memory://itself").await?;
                let blocking = Coordinator::from(coordinator.clone());
                let guard = blocking.lock("a")?.acquire(Some(Duration::from_secs(1)))?;
                let refused = [
                    blocking.lock("a")?.acquire(Some(Duration::from_secs(1))).map(drop),
                    blocking.lock("a")?.acquire(None).map(drop),
                    blocking.lock("a")?.holders().map(drop),
                    blocking.lock("b")?.cohort().acquire(None).map(drop),
                    blocking.lock("b")?.cohort().with_value(None, |_| unreachable!("refused")),
                    blocking.semaphore("s", 2)?.acquire(None).map(drop),
                    blocking.stop(),
                ];
                for refused in refused {
                    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Unsupported));
                }
                // Nothing was left behind, and the async calls still work.
                assert_eq!(coordinator.lock("a")?.holders().await?.len(), 1);
                release(guard)?;
                let elsewhere = blocking.lock("a")?;
                let waited = tokio::task::spawn_blocking(move || release(elsewhere.acquire(None)?));
                waited.await.expect("no panic")?;
                coordinator.stop().await
            })
            .expect("nothing else fails");
    }

    #[test]
    fn an_update_or_a_watch_that_would_wait_for_itself_fails_at_once() {
        let (told, is_told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let refused = single_threaded().block_on(async {
                let coordinator = crate::Coordinator::connect("memory://itself-later").await?;
                let guard = coordinator.lock("a")?.acquire(None).await?;
                let asked = coordinator.lock("b")?.acquire(None).await?;
                let turn = coordinator.lock("c")?.cohort().acquire(None).await?;
                let leadership = coordinator.election("a")?.campaign("us", None).await?;
                let membership = coordinator.group("a")?.join_or_create("ssd").await?;
                let mut events = coordinator.group("a")?.watch().await?;
                let rejoining = coordinator.group("c")?.join_or_create("ssd").await?.rejoining();
                let rejoining = std::sync::Arc::new(rejoining);
                let other = std::sync::Arc::clone(&rejoining);
                // It has begun, and goes on only once this thread is free.
                let mut updating = std::pin::pin!(other.update("hdd"));
                let begun = std::future::poll_fn(|cx| Poll::Ready(updating.as_mut().poll(cx)));
                assert!(begun.await.is_pending());
                // Nothing is awaited between these two and the calls, so that no view of theirs is there yet.
                let mut values = coordinator.value::<u32>("a")?.watch();
                let mut terms = coordinator.election("b")?.observe();
                let refused = [
                    wait(guard.downgrade()).map(drop),
                    wait(leadership.proclaim("them")),
                    wait(membership.update("hdd")),
                    wait(values.next()).map(drop),
                    wait(terms.next()).map(drop),
                    wait(events.next()).map(drop),
                    wait(rejoining.update("nvme")),
                    wait(asked.release_requested()),
                    wait(turn.release_requested()),
                    wait(turn.release()),
                ];
                updating.await?;
                // What is there already is returned, and the async calls still work.
                assert_eq!(values.next().await?, crate::ValueEvent::NoValue);
                assert!(coordinator.lock("a")?.holders().await?.is_empty(), "it is released");
                coordinator.lock("c")?.acquire(None).await?.release().await?;
                membership.update("hdd").await?;
                coordinator.stop().await?;
                Ok::<_, crate::Error>(refused.map(|refused| refused.map_err(|error| error.kind())))
            });
            told.send(refused.expect("nothing else fails"))
        });
        let refused =
            is_told.recv_timeout(Duration::from_secs(10)).expect("no call waits for ever");
        assert_eq!(refused, [Err(ErrorKind::Unsupported); 10]);
    }

    #[test]
    fn a_blocking_connect_never_waits_for_itself() {
        single_threaded()
            .block_on(async {
                let blocking = Coordinator::connect("memory://own-thread")?;
                let guard = blocking.lock("a")?.acquire(None)?;
                let late = blocking.lock("a")?.acquire(Some(Duration::from_millis(20)));
                assert_eq!(late.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Timeout));
                release(guard)?;
                blocking.stop()
            })
            .expect("nothing else fails");
    }

    /// More calls than tokio allows a task before the task has to yield.
    const MANY: usize = 1_000;

    #[test]
    fn many_calls_within_one_poll_do_not_wait_for_themselves() {
        single_threaded()
            .block_on(async {
                let blocking = Coordinator::connect("memory://one-poll")?;
                let lock = blocking.lock("a")?;
                for _ in 0..MANY {
                    release(lock.acquire(Some(Duration::from_secs(60)))?)?;
                    lock.holders()?;
                }
                blocking.stop()?;
                let coordinator = crate::Coordinator::connect("memory://one-poll").await?;
                let lock = coordinator.lock("a")?;
                for _ in 0..MANY {
                    // Stands for a user's own executor, which is not tokio's.
                    drop(pollster::block_on(lock.acquire(None))?);
                }
                coordinator.stop().await
            })
            .expect("nothing else fails");
    }

    #[test]
    fn a_runtime_that_another_thread_runs_answers() {
        let runtime = single_threaded();
        let coordinator = crate::Coordinator::connect("memory://another-thread");
        let coordinator = runtime.block_on(coordinator).expect("it is in memory");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = std::thread::spawn(move || runtime.block_on(stopped));
        let lock = Coordinator::from(coordinator).lock("a").expect("a good name");
        let guard = lock.acquire(None).expect("it is free");
        let late = lock.acquire(Some(Duration::from_millis(20)));
        assert_eq!(late.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Timeout));
        release(guard).expect("it is held");
        stop.send(()).expect("it listens");
        running.join().expect("no panic").expect("it was told");
    }
}
