//! What `#[synchronized]` calls: the attribute leaves a few lines in a function, the rest is here.
//!
//! Not part of the public API, and free to change with the attribute: the two crates are released
//! together. In the order of the calls:
//!
//! 1. [`global`] or [`in_order`]: the locks, sorted by name and each once, so that two functions
//!    that name them in opposite orders cannot wait for each other.
//! 2. [`acquire`]: takes one after the other, with one deadline for all.
//! 3. [`Held::run`]: the body, beside the loss of any of the locks.
//! 4. [`Held::release`]: in reverse order.
//! 5. [`outcome`]: decides what the caller gets, and turns our error into the caller's.
//!
//! A plain `fn` calls the same steps in [`blocking`].

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Coordinator, Error, ErrorKind, Lock, LockGuard, LossReason, Result};

/// What becomes of the body when a lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// It is dropped at its next await, and the caller gets [`ErrorKind::Lost`].
    Cancel,
    /// It goes on, and the caller gets its result.
    Finish,
}

impl OnLost {
    fn settle<R>(self, result: R, loss: Option<Error>) -> Released<R> {
        Released { result, loss: loss.filter(|_| self == Self::Cancel) }
    }
}

/// The return type of a synchronized function: a `Result` that can hold our error.
#[diagnostic::on_unimplemented(
    message = "a synchronized function cannot return `{Self}`",
    label = "this is not a `Result<T, E>` with `E: From<coordination::Error>`",
    note = "taking a lock can fail: implement `From<coordination::Error>` for the error type, or return another"
)]
pub trait Outcome {
    /// Whether the body did what it was to do.
    fn is_success(&self) -> bool;

    /// The result of a body that did not run to its end.
    fn failed(error: Error) -> Self;
}

// Without the attribute, rustc would only say which `From` is missing, and not what for.
#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> Outcome for Result<T, E> {
    fn is_success(&self) -> bool {
        self.is_ok()
    }

    fn failed(error: Error) -> Self {
        Err(error.into())
    }
}

/// What the synchronized function returns.
///
/// The only place that asks for [`Outcome`], so that a return type that is none is one error.
pub fn outcome<R: Outcome>(released: Result<Released<R>>) -> R {
    match released {
        // The body's own failure is never replaced; its success only when a lock did not last as long.
        Ok(Released { result, loss: Some(error) }) if result.is_success() => R::failed(error),
        Ok(Released { result, .. }) => result,
        Err(error) => R::failed(error),
    }
}

/// What a body returned, and whether the locks lasted as long.
#[derive(Debug)]
pub struct Released<R> {
    result: R,
    /// Only where it is to count.
    loss: Option<Error>,
}

/// The locks of these names, of the global coordinator.
pub fn global<const N: usize>(names: [String; N]) -> Result<Vec<Lock>> {
    let coordinator = Coordinator::global()?;
    in_order(names.map(|name| coordinator.lock(name)))
}

/// The locks sorted by name, each name once.
pub fn in_order<L: Named, const N: usize>(locks: [Result<L>; N]) -> Result<Vec<L>> {
    let mut locks = locks.into_iter().collect::<Result<Vec<L>>>()?;
    locks.sort_by(|a, b| a.lock_name().cmp(b.lock_name()));
    locks.dedup_by(|a, b| a.lock_name() == b.lock_name());
    Ok(locks)
}

/// A lock of either kind.
pub trait Named {
    /// What it locks.
    fn lock_name(&self) -> &str;
}

impl Named for Lock {
    fn lock_name(&self) -> &str {
        self.name()
    }
}

/// Takes the locks one after the other; what was taken is released when a later one fails.
///
/// # Cancel safety
///
/// A dropped future leaves nothing behind.
pub async fn acquire(
    locks: Result<Vec<Lock>>,
    timeout: Option<Duration>,
    on_lost: OnLost,
) -> Result<Held> {
    let locks = locks?;
    let budget = Budget::new(timeout);
    let mut guards = Vec::with_capacity(locks.len());
    for lock in &locks {
        guards.push(lock.acquire(budget.left()).await?);
    }
    Ok(Held { guards, on_lost, _locks: locks })
}

/// The time that several acquisitions may take together.
struct Budget {
    timeout: Option<Duration>,
    start: Instant,
}

impl Budget {
    fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, start: Instant::now() }
    }

    /// Nothing left is not a failure yet: the next lock is tried, and may be free.
    fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.start.elapsed()))
    }
}

/// The locks that a body runs under. Dropped, by a panic or with the future, it releases them in
/// the background.
#[derive(Debug)]
pub struct Held<L = Lock> {
    /// Invariant: not empty, as the attribute asks for a name.
    guards: Vec<LockGuard>,
    on_lost: OnLost,
    /// They keep the coordinator's session open, which may otherwise end with the body's parameters.
    _locks: Vec<L>,
}

impl<L> Held<L> {
    /// The guard of a function with one name.
    pub fn guard(&self) -> &LockGuard {
        &self.guards[0]
    }

    /// All guards, sorted by name.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Looked at before the release, after which no guard is held.
    fn loss(&self) -> Option<Error> {
        let held = self.guards.iter().all(|guard| guard.is_held());
        // The release, which knows more, replaces the reason.
        (!held).then(|| Error::lost("release", LossReason::DeadlinePassed))
    }
}

impl Held {
    /// Runs the body; [`ErrorKind::Lost`] when it was dropped because a lock was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output> {
        match self.guards.as_slice() {
            _ if self.on_lost == OnLost::Finish => Ok(body.await),
            [guard] => guard.protect(body).await,
            guards => protect(guards, body).await,
        }
    }

    /// Releases what is held; answers with the result of the body and the loss of a lock.
    ///
    /// # Cancel safety
    ///
    /// What is not released yet is released in the background.
    pub async fn release<R>(self, ran: Result<R>) -> Result<Released<R>> {
        // The caller is to learn of a loss at once: the drop does the rest.
        let result = ran?;
        let mut loss = self.loss();
        for guard in self.guards.into_iter().rev() {
            loss = after_release(guard.release().await, loss);
        }
        Ok(self.on_lost.settle(result, loss))
    }
}

/// Runs `body` until the first of the locks is lost.
async fn protect<F: Future>(guards: &[LockGuard], body: F) -> Result<F::Output> {
    let mut losses: Vec<Loss<'_>> = guards.iter().map(|guard| Box::pin(loss(guard)) as _).collect();
    let mut body = pin!(body);
    poll_fn(|context| match first(&mut losses, context) {
        Poll::Ready(error) => Poll::Ready(Err(error)),
        Poll::Pending => body.as_mut().poll(context).map(Ok),
    })
    .await
}

type Loss<'a> = Pin<Box<dyn Future<Output = Error> + Send + 'a>>;

async fn loss(guard: &LockGuard) -> Error {
    let Err(error) = guard.protect(pending::<Infallible>()).await;
    error
}

fn first(losses: &mut [Loss<'_>], context: &mut Context<'_>) -> Poll<Error> {
    losses
        .iter_mut()
        .map(|loss| loss.as_mut().poll(context))
        .find(Poll::is_ready)
        .unwrap_or(Poll::Pending)
}

/// A loss is the caller's to know; other failures are the library's to mend.
fn after_release(released: Result<()>, loss: Option<Error>) -> Option<Error> {
    match released {
        Ok(()) => loss,
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Closed) => Some(error),
        Err(error) => {
            tracing::warn!(%error, "a lock was not seen to be released; this goes on in the background");
            loss
        }
    }
}

/// The same for a plain `fn`. Its body cannot be stopped: a loss is seen when it has ended.
pub mod blocking {
    use super::{Budget, Named, OnLost, Released, after_release};
    use crate::{Result, blocking};
    use std::time::Duration;

    impl Named for blocking::Lock {
        fn lock_name(&self) -> &str {
            self.name()
        }
    }

    /// Takes the locks one after the other, waiting on this thread.
    pub fn acquire<L: Into<blocking::Lock>>(
        locks: Result<Vec<L>>,
        timeout: Option<Duration>,
        on_lost: OnLost,
    ) -> Result<Held> {
        let locks: Vec<blocking::Lock> = locks?.into_iter().map(Into::into).collect();
        let budget = Budget::new(timeout);
        let mut guards = Vec::with_capacity(locks.len());
        for lock in &locks {
            guards.push(lock.acquire(budget.left())?);
        }
        Ok(Held { guards, on_lost, _locks: locks })
    }

    /// The locks that a closure runs under; a panic in it releases them in the background.
    pub type Held = super::Held<blocking::Lock>;

    impl Held {
        /// Runs the body to its end.
        pub fn run<R>(&self, body: impl FnOnce() -> R) -> R {
            body()
        }

        /// Releases what is held; answers with the result of the body and the loss of a lock.
        pub fn release<R>(self, result: R) -> Result<Released<R>> {
            let mut loss = self.loss();
            for guard in self.guards.into_iter().rev() {
                loss = after_release(blocking::release(guard), loss);
            }
            Ok(self.on_lost.settle(result, loss))
        }
    }
}
