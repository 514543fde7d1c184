//! `with` and `with_value`: a body runs under what is acquired for it, or under a guard that is there already.
//!
//! All of them are [`under`], which is the few lines that `#[synchronized]` leaves in a function, and [`run`], which these lines
//! call.

mod acquired;
mod cohort;
mod guards;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::body::{Held, OnLost, Run, converted, run, take};
use super::engine::any_guard::AnyGuard;
use super::multi::{Take, lost_by_now};
use crate::error::{Effect, Error, Result};

/// Runs `body` under the guards that `taking` gives, as the part of them that `pick` gives; its result becomes the caller's by
/// `finish`.
fn under<G, X, R, T, E, B>(
    taking: Taking<G>,
    pick: fn(&[G]) -> &X,
    finish: fn(R) -> Result<T, E>,
    body: B,
) -> Run<G, Pin<Box<impl Future<Output = Result<T, E>> + use<G, X, R, T, E, B>>>>
where
    G: AnyGuard,
    X: ?Sized,
    E: From<Error>,
    B: AsyncFnOnce(&X) -> R,
{
    let (held, outcomes) = (Held::new(OnLost::Cancel), converted());
    let own = Arc::clone(&held);
    let under = async move {
        // What is named first here is dropped first if this is never polled: the body, before the guards that `taking` may have.
        let body = body;
        match own.hold(taking.await) {
            Ok(guards) => finish(body(pick(guards)).await),
            Err(error) => outcomes.failed(error),
        }
    };
    // In a box: what the body owns would otherwise be copied several times into the future of each caller.
    run(held, outcomes, Box::pin(under))
}

/// Resolves with the guards under which a body is to run. In a box, so that it does not make the future large that runs the body.
type Taking<G> = Pin<Box<dyn Future<Output = Result<Vec<G>>> + Send>>;

/// Acquires one after the other; `wanted` is sorted by name.
fn taking<T: Take>(wanted: Result<Vec<T>>, timeout: Option<Duration>) -> Taking<T::Guard> {
    Box::pin(take(wanted, timeout))
}

/// Guards that were acquired before. If one is lost by the time when the body is to begin, the body does not begin.
fn taken<G: AnyGuard>(guards: Vec<G>) -> Taking<G> {
    Box::pin(async move { lost_by_now(&guards, "run", Effect::None).map_or(Ok(guards), Err) })
}

/// All guards, for a body that runs under several.
fn all<G>(guards: &[G]) -> &[G] {
    guards
}
