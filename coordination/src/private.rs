//! What `#[synchronized]` calls: the attribute leaves a few lines in a function, the rest is here.
//!
//! Not part of the public API, and free to change with the attribute: the two crates are released
//! together. In the order of the calls:
//!
//! 1. [`outcome`], or [`mapped`]: how errors of the library become errors of the function.
//! 2. [`run`]: polls the body, which acquires the locks itself before any code of the user runs. So all parameters of the
//!    function are owned by the body, and are dropped there, while the locks are held.
//! 3. In the body, [`global`], or the coordinator that the attribute names.
//! 4. [`in_order`]: locks, [shared](shared) locks, or semaphores; sorted by name and each once, so that
//!    two functions that name the same locks in opposite orders cannot wait for each other.
//! 5. [`Held::acquire`]: acquires one after the other, with one deadline for all. From there on the body has begun, and
//!    [`run`] polls the body and the loss of each lock.
//! 6. When the body has ended, [`run`] decides what the caller gets, and releases in reverse order.
//!
//! A plain `fn` calls the same steps in [`blocking`]. The code for several locks at once is in
//! `recipe/multi.rs`.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::recipe::engine::protect::first_lost;
use crate::recipe::multi::{self, lost_by_now, watches};
pub use crate::recipe::multi::{InEither, Shared, Take};
use crate::{Coordinator, Effect, Error, Result};

/// What happens to the body when a lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// The body is dropped at its next await, and the caller gets [`ErrorKind::Lost`](crate::ErrorKind::Lost).
    Cancel,
    /// The body goes on, and the caller gets its result.
    Finish,
}

/// The return type of a synchronized function: a `Result` that can hold our error.
#[diagnostic::on_unimplemented(
    message = "a synchronized function cannot return `{Self}`",
    label = "this is not a `Result<T, E>` with `E: From<coordination::Error>`",
    note = "taking a lock can fail: say how that becomes an error of yours, as in `map_err = std::io::Error::other` or `map_err = |error| error.to_string()`",
    note = "or implement `From<coordination::Error>` for the error type, if that is a type of your own crate"
)]
pub trait Outcome {
    /// Whether the body succeeded.
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

/// How a function turns the library's errors into its own result.
pub struct Outcomes<R> {
    is_success: fn(&R) -> bool,
    failed: fn(Error) -> R,
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

/// The errors of a function whose error type can be made from the library's error.
///
/// The only place that requires [`Outcome`], so that a wrong return type is a single compile error.
pub fn outcome<R: Outcome>() -> Outcomes<R> {
    Outcomes { is_success: R::is_success, failed: R::failed }
}

/// The errors of a function with another error type, which `map_err` makes from the library's error.
pub fn mapped<T, E>(failed: fn(Error) -> Result<T, E>) -> Outcomes<Result<T, E>> {
    Outcomes { is_success: Result::is_ok, failed }
}

/// The coordinator of functions that do not name one: the global coordinator.
pub fn global() -> Result<Coordinator> {
    Coordinator::global()
}

/// Asks for the lock in shared mode instead of exclusively.
pub fn shared<L>(lock: Result<L>) -> Result<Shared<L>> {
    lock.map(Shared)
}

/// Asks for the lock exclusively, in a function that asks for another one in shared mode.
pub fn whole<L>(lock: Result<L>) -> Result<InEither<L>> {
    lock.map(InEither::Whole)
}

/// Asks for the lock in shared mode, in a function that asks for another one exclusively.
pub fn share<L>(lock: Result<L>) -> Result<InEither<L>> {
    lock.map(|lock| InEither::Share(Shared(lock)))
}

/// The locks or permits to be acquired, sorted by name, each name once. Their names were made of these templates.
pub fn in_order<T: Take, const N: usize>(
    templates: [Option<&'static str>; N],
    wanted: [Result<T>; N],
) -> Result<Vec<T>> {
    let made_of = |(wanted, template): (Result<T>, Option<_>)| match template {
        Some(template) => wanted.map(|wanted| wanted.made_of(template)),
        None => wanted,
    };
    let wanted = wanted.into_iter().zip(templates).map(made_of);
    wanted.collect::<Result<_>>().map(multi::in_order)
}

/// The guards under which a body runs. When it is dropped, by a panic or with the future, it releases them in the background.
pub struct Held<T: Take> {
    on_lost: OnLost,
    taken: OnceLock<Taken<T>>,
}

struct Taken<T: Take> {
    /// Invariant: not empty, as the attribute asks for a name.
    guards: Vec<T::Guard>,
    /// The locks or semaphores. They keep the coordinator's session open, which may otherwise end with the body's parameters.
    _wanted: Vec<T>,
}

/// The guard of a function with one name.
pub fn only<G>(guards: &[G]) -> &G {
    &guards[0]
}

impl<T: Take> Held<T> {
    /// The value holds no guard yet: `acquire` takes the locks when the body is to begin.
    pub fn new(on_lost: OnLost) -> Arc<Self> {
        Arc::new(Self { on_lost, taken: OnceLock::new() })
    }

    /// Acquires one after the other, and returns the guards, sorted by name. If one fails, those that were acquired before are
    /// released, and the error says that the body has not begun.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    // The future is in a box, so that a small body's future is not made large by what it does before it begins.
    pub fn acquire<'a>(
        &'a self,
        wanted: Result<Vec<T>>,
        timeout: Option<Duration>,
    ) -> Acquiring<'a, T> {
        Box::pin(async move {
            let take = async {
                let wanted = wanted?;
                let guards = multi::take_all(&wanted, timeout).await?;
                Ok(Taken { guards, _wanted: wanted })
            };
            let taken = take.await.map_err(|error: Error| error.with_body(Effect::None))?;
            Ok(&*self.taken.get_or_init(|| taken).guards)
        })
    }

    /// A future that resolves when a lock is lost, with the error for which the body is then dropped. `None` before the body has
    /// begun, and if the body is to go on in spite of a loss.
    fn loss(&self) -> Option<Loss> {
        let taken = self.taken.get().filter(|_| self.on_lost == OnLost::Cancel)?;
        let watches = watches(&taken.guards);
        Some(Box::pin(async move {
            let (lost, reason) = first_lost(watches).await;
            lost.error("run", reason, Effect::Unknown)
        }))
    }

    /// The result that the caller gets when the body has ended, and the guards to release then.
    fn settle<R>(self: Arc<Self>, result: R, outcomes: Outcomes<R>) -> (R, Option<Release>) {
        let on_lost = self.on_lost;
        // Invariant: the body had the other reference, and it has been dropped.
        let Some(taken) = Arc::into_inner(self).and_then(|held| held.taken.into_inner()) else {
            return (result, None);
        };
        let loss = lost_by_now(&taken.guards, "run", Effect::Applied);
        // The body's own error is never replaced. Its success is replaced only if a lock was lost before the body ended.
        let result = match loss.filter(|_| on_lost == OnLost::Cancel) {
            Some(error) if (outcomes.is_success)(&result) => outcomes.failed(error),
            _ => result,
        };
        (result, Some(Box::pin(release(taken))))
    }
}

/// Releases the guards. The caller does not learn whether the store confirms this: the body has ended, and it is known whether the
/// locks were held until then.
async fn release<T: Take>(taken: Taken<T>) {
    if let Err(error) = multi::release_all(taken.guards).await {
        tracing::warn!(%error, "a lock was not seen to be released; this goes on in the background");
    }
}

type Acquiring<'a, T> = Pin<Box<dyn Future<Output = Result<&'a [<T as Take>::Guard]>> + Send + 'a>>;
type Loss = Pin<Box<dyn Future<Output = Error> + Send>>;
type Release = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a body, which takes its locks by [`Held::acquire`] of the same `held`, until it ends or one of them is lost, and
/// releases them.
pub fn run<T: Take, F: Future>(
    held: Arc<Held<T>>,
    outcomes: Outcomes<F::Output>,
    body: F,
) -> Run<T, F> {
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
    #[project = Stage]
    #[must_use = "futures do nothing unless polled"]
    pub enum Run<T: Take, F: Future> {
        /// The state before the body begins and while it runs.
        Body {
            // Declared before the locks, so that it is dropped while they are held.
            #[pin]
            body: F,
            held: Arc<Held<T>>,
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

impl<T: Take, F: Future> Future for Run<T, F> {
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

impl<T: Take, F: Future> Run<T, F> {
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
fn poll_body<T: Take, F: Future>(
    body: Pin<&mut F>,
    held: &Held<T>,
    loss: &mut Option<Loss>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output>> {
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

/// The same steps for a plain `fn`. Its body cannot be stopped: a loss is reported when the body has ended.
pub mod blocking {
    use super::{Arc, Held, Outcomes, Take};
    use crate::Result;
    use crate::blocking::wait;
    use std::time::Duration;

    /// [`Held::acquire`], waiting on this thread.
    pub fn acquire<T: Take>(
        held: &Held<T>,
        wanted: Result<Vec<T>>,
        timeout: Option<Duration>,
    ) -> Result<&[T::Guard]> {
        wait(held.acquire(wanted, timeout))
    }

    /// [`super::run`], on this thread. A panic in the body releases what is held in the background.
    pub fn run<T: Take, R>(
        held: Arc<Held<T>>,
        outcomes: Outcomes<R>,
        body: impl FnOnce() -> R,
    ) -> R {
        let (result, release) = held.settle(body(), outcomes);
        if let Some(release) = release {
            wait(release);
        }
        result
    }
}
