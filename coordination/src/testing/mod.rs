//! For tests of code that uses this library: a coordinator for each test, and losses on demand. Needs the feature `testing`.
//!
//! The global coordinator is one for the whole process, and tests of one program run in one process. So a test enters a
//! [`Scope`], in which it has a global coordinator of its own: `#[synchronized]` and [`Coordinator::global`] find that one,
//! and [`Coordinator::install`] sets it. Code under test needs no change. A [`Sandbox`] is such a scope, with a coordinator in
//! it that is connected to an empty store of its own, and with the means to break both.
//!
//! The page `docs/testing-your-code.md` in the repository has five tests to begin with.
//!
//! # Which coordinator is found
//!
//! The first that there is of these:
//!
//! 1. that of the innermost [`Scope::run`] around the code, in the same task;
//! 2. that of the [`Scope::enter`] that this thread has called last, and whose value is still there;
//! 3. that of the `enter` that was called last in the same tokio runtime, on whatever thread of it;
//! 4. that of the process.
//!
//! So after `enter` in a `#[tokio::test]`, tasks that the code under test starts see the scope, and what it gives to
//! `spawn_blocking` as well, since such a test has a runtime of its own. Threads that it starts by itself do not; a test hands a
//! clone of the scope to them. Where several parts of a test are to have different coordinators, `run` each of them in its scope; a
//! task that is spawned in there does not inherit it.
//!
//! # Examples
//!
//! ```
//! use coordination::testing::Sandbox;
//! use coordination::{ErrorKind, synchronized};
//!
//! #[synchronized("vol-<id>", timeout = "50ms")]
//! async fn resize(id: u32, gib: u64) -> coordination::Result<u64> {
//!     Ok(gib)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
//! let sandbox = Sandbox::new()?;
//! let _entered = sandbox.enter();
//! assert_eq!(resize(7, 20).await?, 20);
//!
//! // Another process has the lock.
//! let other = sandbox.another().await?;
//! let held = other.lock("vol-7")?.acquire(None).await?;
//! assert_eq!(resize(7, 20).await.unwrap_err().kind(), ErrorKind::Timeout);
//! # drop(held);
//! # Ok(()) }
//! ```

mod sandbox;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use self::sandbox::Sandbox;
use crate::coordinator::Coordinator;
use crate::global::{Slot, scopes};

/// A place that has a global coordinator of its own. Cheap to clone; clones are the same place.
///
/// The [module](self) says what is found where. A scope keeps its coordinator as long as a clone of it, what [`run`](Self::run)
/// has returned, or what [`enter`](Self::enter) has returned is there.
///
/// # Examples
///
/// ```
/// use coordination::Coordinator;
/// use coordination::testing::Scope;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let one = Coordinator::connect("memory://one").await?;
/// let other = Coordinator::connect("memory://other").await?;
/// let global = async || Coordinator::global().map(|global| global.member_id().to_owned());
///
/// // Two parts of a test, each with a global coordinator of its own.
/// assert_eq!(Scope::of(&one).run(global()).await?, one.member_id());
/// assert_eq!(Scope::of(&other).run(global()).await?, other.member_id());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Scope(Arc<Slot>);

impl Scope {
    /// A scope without a coordinator: one for code under test that connects and installs by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Coordinator;
    /// use coordination::testing::{Sandbox, Scope};
    ///
    /// /// As at the boot of a service.
    /// async fn boot(url: &str) -> coordination::Result<()> {
    ///     Coordinator::connect(url).await?.install()
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let sandbox = Sandbox::new()?;
    /// let entered = Scope::new().enter();
    /// boot(sandbox.url()).await?;
    /// assert!(Coordinator::global().is_ok());
    /// drop(entered);
    /// assert!(Coordinator::global().is_err());
    /// # Ok(()) }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// A scope with this coordinator, on whatever store.
    pub fn of(coordinator: &Coordinator) -> Self {
        let scope = Self::new();
        // Nothing else is installed in there.
        scope.0.install(coordinator);
        scope
    }

    /// Runs a future in this scope. Scopes may be nested: the innermost counts.
    ///
    /// # Cancel safety
    ///
    /// That of the future.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Coordinator;
    /// use coordination::testing::Sandbox;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let sandbox = Sandbox::new()?;
    /// let member = || async { Coordinator::global().map(|global| global.member_id().to_owned()) };
    /// assert_eq!(sandbox.run(member()).await?, sandbox.coordinator().member_id());
    ///
    /// // A spawned task does not inherit it.
    /// assert!(sandbox.run(async { tokio::spawn(member()).await }).await.unwrap().is_err());
    /// assert!(tokio::spawn(sandbox.run(member())).await.unwrap().is_ok());
    /// # Ok(()) }
    /// ```
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        scopes::run(Arc::clone(&self.0), future)
    }

    /// Enters this scope on this thread, and on the tokio runtime in which this is called, if there is one: until what it returns
    /// is dropped.
    pub fn enter(&self) -> Entered {
        Entered { _entered: scopes::Entered::new(Arc::clone(&self.0)) }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("coordinator", &self.0.installed()).finish()
    }
}

/// A scope that was [entered](Scope::enter). Dropping it leaves the scope; of several, in any order.
///
/// # Examples
///
/// ```
/// use coordination::Coordinator;
/// use coordination::testing::Sandbox;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let sandbox = Sandbox::new()?;
/// let entered = sandbox.enter();
/// assert!(Coordinator::global().is_ok());
/// drop(entered);
/// assert!(Coordinator::global().is_err());
/// # Ok(()) }
/// ```
#[must_use = "the scope is left when this is dropped; write `let _entered = ..`"]
pub struct Entered {
    _entered: scopes::Entered,
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}
