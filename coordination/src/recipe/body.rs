//! Runs a body under guards: the body of a function with `#[synchronized]`, and the one that a `with` is given.
//!
//! 1. [`run`] polls the body, which acquires the guards itself before any code of the user runs. So whatever the body was given
//!    belongs to the body, and is dropped there, while the guards are held.
//! 2. In the body, [`Held::acquire`] or [`Held::hold`]. From there on the body has begun, and [`run`] polls the body and the loss
//!    of each guard.
//! 3. When the body has ended, [`run`] decides what the caller gets, and releases in reverse order.
//!
//! Without async code, the same steps are in `blocking/with.rs`.
#![cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::engine::any_guard::AnyGuard;
use super::engine::protect::first_lost;
use super::multi::{Take, lost_by_now, release_all, take_all, watches};
use crate::error::{Effect, Error, Result};

/// What happens to the body when a lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// The body is dropped at its next await, and the caller gets [`ErrorKind::Lost`](crate::ErrorKind::Lost).
    Cancel,
    /// The body goes on, and the caller gets its result.
    #[cfg_attr(not(feature = "macros"), expect(dead_code, reason = "only the attribute asks"))]
    Finish,
}

/// How the library's errors become a result of the caller's, and which of these results are successes.
pub struct Outcomes<R> {
    pub(crate) is_success: fn(&R) -> bool,
    pub(crate) failed: fn(Error) -> R,
}

impl<R> Outcomes<R> {
    /// The result of a body that did not run to its end.
    pub fn failed(self, error: Error) -> R {
        (self.failed)(error)
    }
}

impl<R> Clone for Outcomes<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Outcomes<R> {}

/// The outcomes of a caller whose error type `failed` makes from the library's error.
pub fn mapped<T, E>(failed: fn(Error) -> Result<T, E>) -> Outcomes<Result<T, E>> {
    Outcomes { is_success: Result::is_ok, failed }
}

/// The outcomes of a caller whose error type can be made from the library's error.
pub(crate) fn converted<T, E: From<Error>>() -> Outcomes<Result<T, E>> {
    mapped(|error| Err(error.into()))
}

/// The guards under which a body runs. When it is dropped, by a panic or with the future, it releases them in the background.
pub struct Held<G> {
    on_lost: OnLost,
    /// Invariant: not empty once it is set, because every caller asks for a name or has a guard.
    guards: OnceLock<Vec<G>>,
}

/// The guard of a body that runs under one.
pub fn only<G>(guards: &[G]) -> &G {
    &guards[0]
}

impl<G: AnyGuard> Held<G> {
    /// The value holds no guard yet: the body takes the guards when it is to begin.
    pub fn new(on_lost: OnLost) -> Arc<Self> {
        Arc::new(Self { on_lost, guards: OnceLock::new() })
    }

    /// Acquires one after the other, and returns the guards, sorted by name. If one fails, those that were acquired before are
    /// released, and the error says that the body has not begun.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    // The future is in a box, so that a small body's future is not made large by what it does before it begins.
    pub fn acquire<'a, T: Take<Guard = G>>(
        &'a self,
        wanted: Result<Vec<T>>,
        timeout: Option<Duration>,
    ) -> Acquiring<'a, G> {
        Box::pin(async move { self.hold(take(wanted, timeout).await) })
    }

    /// Holds these guards from now on; or says that the body has not begun, and why.
    pub(crate) fn hold(&self, taken: Result<Vec<G>>) -> Result<&[G]> {
        let guards = taken.map_err(|error| error.with_body(Effect::None))?;
        Ok(self.guards.get_or_init(|| guards))
    }

    /// A future that resolves when a lock is lost, with the error for which the body is then dropped. `None` before the body has
    /// begun, and if the body is to go on in spite of a loss.
    fn loss(&self) -> Option<Loss> {
        let guards = self.guards.get().filter(|_| self.on_lost == OnLost::Cancel)?;
        let watches = watches(guards);
        Some(Box::pin(async move {
            let (lost, reason) = first_lost(watches).await;
            lost.error("run", reason, Effect::Unknown)
        }))
    }

    /// The result that the caller gets when the body has ended, and the guards to release then.
    pub(crate) fn settle<R>(
        self: Arc<Self>,
        result: R,
        outcomes: Outcomes<R>,
    ) -> (R, Option<Release>) {
        let on_lost = self.on_lost;
        // Invariant: the body had the other reference, and it has been dropped.
        let Some(guards) = Arc::into_inner(self).and_then(|held| held.guards.into_inner()) else {
            return (result, None);
        };
        let loss = lost_by_now(&guards, "run", Effect::Applied);
        // The body's own error is never replaced. Its success is replaced only if a lock was lost before the body ended.
        let result = match loss.filter(|_| on_lost == OnLost::Cancel) {
            Some(error) if (outcomes.is_success)(&result) => outcomes.failed(error),
            _ => result,
        };
        (result, Some(Box::pin(release(guards))))
    }
}

/// Acquires one after the other; `wanted` is sorted by name.
pub(crate) async fn take<T: Take>(
    wanted: Result<Vec<T>>,
    timeout: Option<Duration>,
) -> Result<Vec<T::Guard>> {
    take_all(&wanted?, timeout).await
}

/// Releases the guards. The caller does not learn whether the store confirms this: the body has ended, and it is known whether the
/// locks were held until then.
async fn release<G: AnyGuard>(guards: Vec<G>) {
    // A loss is told to the caller, and leaves nothing to be released.
    if let Err(error) = release_all(guards).await
        && error.loss_reason().is_none()
    {
        tracing::warn!(%error, "a lock was not seen to be released; this goes on in the background");
    }
}

type Acquiring<'a, G> = Pin<Box<dyn Future<Output = Result<&'a [G]>> + Send + 'a>>;
type Loss = Pin<Box<dyn Future<Output = Error> + Send>>;
pub(crate) type Release = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a body, which takes its guards by [`Held::acquire`] or `Held::hold` of the same `held`, until it ends or one of them is
/// lost, and releases them.
pub fn run<G, F: Future>(held: Arc<Held<G>>, outcomes: Outcomes<F::Output>, body: F) -> Run<G, F> {
    Run::Body { body, held, outcomes, loss: None }
}

pin_project! {
    /// See [`run`].
    ///
    /// The body is a field of an enum. An `async fn` would keep copies of the body. There are few layers of types, because each of
    /// them counts towards the depth to which rustc follows a type.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body at the point that it has reached; what is held is released in the background.
    #[doc(hidden)]
    #[project = Stage]
    #[must_use = "futures do nothing unless polled"]
    pub enum Run<G, F: Future> {
        /// The state before the body begins and while it runs.
        Body {
            // Declared before the locks, so that it is dropped while they are held.
            #[pin]
            body: F,
            held: Arc<Held<G>>,
            outcomes: Outcomes<F::Output>,
            loss: Option<Loss>,
        },
        /// The state after the body has ended and been dropped, while the locks are released.
        Release {
            release: Release,
            result: Option<Box<F::Output>>,
        },
        /// The state after the caller has received the result.
        Ended,
    }
}

impl<G, F> Future for Run<G, F>
where
    G: AnyGuard,
    F: Future,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Stage::Body { body, held, outcomes, loss } = self.as_mut().project() {
            let ran = ready!(poll_body(body, held, loss, context));
            let (held, outcomes) = (Arc::clone(held), *outcomes);
            // Drops the body, whether it has ended or a lock was lost, and then goes on.
            self.set(Self::Ended);
            match ran {
                // The caller is to learn of a loss at once. So the guards are only dropped, which releases them in the background.
                Err(error) => return Poll::Ready(outcomes.failed(error)),
                Ok(result) => match held.settle(result, outcomes) {
                    (result, None) => return Poll::Ready(result),
                    (result, Some(release)) => {
                        self.set(Self::Release { release, result: Some(Box::new(result)) });
                    }
                },
            }
        }
        self.poll_release(context)
    }
}

impl<G, F: Future> Run<G, F> {
    fn poll_release(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Stage::Release { release, result } = self.as_mut().project() else {
            return Poll::Pending;
        };
        ready!(release.as_mut().poll(context));
        let result = result.take();
        self.set(Self::Ended);
        result.map_or(Poll::Pending, |result| Poll::Ready(*result))
    }
}

/// Polls the body, unless one of the locks under which it has begun is lost.
fn poll_body<G, F>(
    body: Pin<&mut F>,
    held: &Held<G>,
    loss: &mut Option<Loss>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output>>
where
    G: AnyGuard,
    F: Future,
{
    if let Some(Poll::Ready(error)) = loss.as_mut().map(|loss| loss.as_mut().poll(context)) {
        return Poll::Ready(Err(error));
    }
    if let Poll::Ready(result) = body.poll(context) {
        return Poll::Ready(Ok(result));
    }
    // The body may have begun in this poll.
    if loss.is_none() {
        *loss = held.loss();
        if let Some(loss) = loss {
            return loss.as_mut().poll(context).map(Err);
        }
    }
    Poll::Pending
}
