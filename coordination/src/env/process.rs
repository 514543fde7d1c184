//! Which process this is. A forked child has a copy of its parent's memory, but not its threads; and open files, the
//! kernel's list of those that a runtime listens to among them, are the parent's as much as its own.
//!
//! So what the parent has made is not for the child to drop: that could end the parent's session, stop its notifications,
//! or wait for a mutex that a thread had locked which the child does not have.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still the same process, and not a child that was forked since.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}

/// A future that a forked child forgets instead of dropping it.
pub(crate) struct Unforked<F> {
    /// `None` only while being dropped.
    future: Option<F>,
    process: Process,
}

impl<F: Future + Unpin> Unforked<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(future), process: Process::this() }
    }
}

impl<F: Future + Unpin> Future for Unforked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match &mut self.future {
            Some(future) => Pin::new(future).poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Unforked<F> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.future.take());
        }
    }
}
