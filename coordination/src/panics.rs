//! Panics in work whose result others wait for: an error of that work, and not the end of the task that does it.
//!
//! When a task panics, work that it does for others stops: a connection that all callers wait for is never made, a watch is
//! never answered, heartbeats end. Therefore code that runs foreign code for others (a driver, the resolver, the
//! system's threads) runs it by [`caught`].

use std::any::Any;
#[cfg(coordination_internals)]
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use tokio::task::JoinError;

use crate::error::{Effect, Error, ErrorKind, Result};

/// Does work that others wait for; a panic in it is an error, after which the next try may do better.
pub(crate) async fn caught<T>(operation: &'static str, work: impl Future<Output = T>) -> Result<T> {
    let mut work = pin!(work);
    // After a panic the work is only dropped, and its own guards have put right what they guard.
    let polled =
        poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panicked(operation, &*panic))),
        });
    polled.await
}

/// The error of a task that has ended without an answer; `None`: it did not panic, its runtime has ended.
pub(crate) fn of_task(operation: &'static str, ended: JoinError) -> Option<Error> {
    ended.try_into_panic().ok().map(|panic| panicked(operation, &*panic))
}

fn panicked(operation: &'static str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
    tracing::warn!(operation, text, "a panic in what others wait for; it is tried again");
    let error = Error::new(ErrorKind::Unavailable, operation, format!("a panic: {text}"));
    error.with_effect(Effect::Unknown)
}

#[cfg(coordination_internals)]
thread_local! {
    static ARMED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Makes the work of this name panic on this thread, the next time that it is done.
#[cfg(coordination_internals)]
pub fn arm(work: &'static str) {
    ARMED.with_borrow_mut(|armed| armed.push(work));
}

/// What was armed on this thread and has not panicked so far.
#[cfg(coordination_internals)]
pub fn armed() -> Vec<&'static str> {
    ARMED.with_borrow(Clone::clone)
}

/// Panics if a test has asked for a panic in this piece of work.
#[cfg(coordination_internals)]
pub(crate) fn on_purpose(work: &'static str) {
    let is_armed = ARMED.with_borrow_mut(|armed| {
        let nth = armed.iter().position(|one| *one == work);
        nth.map(|nth| armed.remove(nth)).is_some()
    });
    assert!(!is_armed, "{work}, on purpose");
}

/// Panics if a test has asked for a panic in this piece of work.
#[cfg(not(coordination_internals))]
pub(crate) const fn on_purpose(_: &'static str) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_after_which_another_try_may_do_better() {
        let error =
            caught("enter", async { panic!("no thread {}", 7) }).await.expect_err("it panics");
        assert!(error.is_transient() && error.effect() == Effect::Unknown);
        assert_eq!(error.message(), "a panic: no thread 7");
        assert_eq!(caught("enter", async { 7 }).await.expect("it does not"), 7);
        let ended = tokio::spawn(async { panic!("never") }).await.expect_err("it panics");
        assert!(of_task("leave", ended).is_some_and(|error| error.operation() == "leave"));
    }
}
