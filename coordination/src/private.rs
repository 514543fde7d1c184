//! What `#[synchronized]` calls: the attribute leaves a few lines in a function, the rest is here.
//!
//! Not part of the public API, and free to change with the attribute: the two crates are released
//! together. In the order of the calls:
//!
//! 1. [`global`], or the coordinator that the attribute names.
//! 2. [`in_order`]: locks, [shares](shared) of them, or semaphores; sorted by name and each once, so that
//!    two functions that name them in opposite orders cannot wait for each other.
//! 3. [`acquire`]: takes one after the other, with one deadline for all.
//! 4. [`Held::run`]: the body, beside the loss of any of them.
//! 5. [`Held::release`]: in reverse order.
//! 6. [`outcome`]: decides what the caller gets, and turns our error into the caller's.
//!
//! A plain `fn` calls the same steps in [`blocking`]. What happens to several at once is in
//! `recipe/multi.rs`.

use std::future::Future;
use std::time::Duration;

use crate::recipe::multi;
pub use crate::recipe::multi::{Shared, Take};
use crate::{Coordinator, Error, ErrorKind, LossReason, Result};

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
    /// `None`: no lock was lost, or the function was to go on in spite of that.
    loss: Option<Error>,
}

/// The global coordinator.
pub fn global() -> Result<Coordinator> {
    Coordinator::global()
}

/// Asks for the lock in shared mode instead of exclusively.
pub fn shared<L>(lock: Result<L>) -> Result<Shared<L>> {
    lock.map(Shared)
}

/// What is to be taken, sorted by name, each name once.
pub fn in_order<T: Take, const N: usize>(wanted: [Result<T>; N]) -> Result<Vec<T>> {
    wanted.into_iter().collect::<Result<_>>().map(multi::in_order)
}

/// Takes one after the other; what was taken is released when a later one fails.
///
/// # Cancel safety
///
/// A dropped future leaves nothing behind.
pub async fn acquire<T: Take>(
    wanted: Result<Vec<T>>,
    timeout: Option<Duration>,
    on_lost: OnLost,
) -> Result<Held<T>> {
    let wanted = wanted?;
    let guards = multi::take_all(&wanted, timeout).await?;
    Ok(Held { guards, on_lost, _wanted: wanted })
}

/// What a body runs under. Dropped, by a panic or with the future, it releases it in the background.
pub struct Held<T: Take> {
    /// Invariant: not empty, as the attribute asks for a name.
    guards: Vec<T::Guard>,
    on_lost: OnLost,
    /// They keep the coordinator's session open, which may otherwise end with the body's parameters.
    _wanted: Vec<T>,
}

impl<T: Take> Held<T> {
    /// The guard of a function with one name.
    pub fn guard(&self) -> &T::Guard {
        &self.guards[0]
    }

    /// All guards, sorted by name.
    pub fn guards(&self) -> &[T::Guard] {
        &self.guards
    }

    /// Runs the body; [`ErrorKind::Lost`] when it was dropped because a lock was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output> {
        match self.on_lost {
            OnLost::Finish => Ok(body.await),
            OnLost::Cancel => multi::protect_all(&self.guards, body).await,
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
        // Looked at before the release, after which no guard is held.
        let held = self.guards.iter().all(|guard| guard.is_held());
        // The release, which knows more, replaces the reason.
        let loss = (!held).then(|| Error::lost("release", LossReason::DeadlinePassed));
        let loss = after_release(multi::release_all(self.guards).await, loss);
        Ok(self.on_lost.settle(result, loss))
    }
}

/// A failed release is reported only if the lock was lost; what else fails is retried in the background.
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

/// The same steps for a plain `fn`. Its body cannot be stopped: a loss is reported when the body has ended.
pub mod blocking {
    use super::{OnLost, Released, Take};
    use crate::Result;
    use crate::blocking::wait;
    use std::time::Duration;

    /// [`super::acquire`], waiting on this thread.
    pub fn acquire<T: Take>(
        wanted: Result<Vec<T>>,
        timeout: Option<Duration>,
        on_lost: OnLost,
    ) -> Result<Held<T>> {
        wait(super::acquire(wanted, timeout, on_lost)).map(Held)
    }

    /// What a closure runs under; a panic in it releases it in the background.
    pub struct Held<T: Take>(super::Held<T>);

    impl<T: Take> Held<T> {
        /// The guard of a function with one name.
        pub fn guard(&self) -> &T::Guard {
            self.0.guard()
        }

        /// All guards, sorted by name.
        pub fn guards(&self) -> &[T::Guard] {
            self.0.guards()
        }

        /// Runs the body to its end.
        pub fn run<R>(&self, body: impl FnOnce() -> R) -> R {
            body()
        }

        /// Releases what is held; answers with the result of the body and the loss of a lock.
        pub fn release<R>(self, result: R) -> Result<Released<R>> {
            wait(self.0.release(Ok(result)))
        }
    }
}
