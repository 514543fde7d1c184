//! Which process this is. A forked child has a copy of its parent's memory, but not its threads; and open files, the
//! kernel's list of those that a runtime listens to among them, are the parent's as much as its own.
//!
//! So what the parent has made is not for the child to drop: that could end the parent's session, stop its notifications,
//! or wait for a mutex that a thread had locked which the child does not have.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A pid namespace counts its processes from 1 on. A child that is forked into a new one gets one of the first numbers, which may
/// be that of its parent: a container's first process has 1 as well. Above this number nobody asks for the namespace.
#[cfg(target_os = "linux")]
const LOW: u32 = 300;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    number: u32,
    /// Of a low number, the pid namespace in which it counts.
    namespace: Option<u64>,
}

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        let number = std::process::id();
        Self { number, namespace: namespace_of(number) }
    }

    /// Whether this is still the same process, and not a child that was forked since.
    pub(crate) fn is_this(self) -> bool {
        let number = std::process::id();
        let is_same = |was: u64| namespace_of(number).is_none_or(|is| is == was);
        // What cannot be read, without /proc, tells nothing.
        self.number == number && self.namespace.is_none_or(is_same)
    }
}

/// This process' pid namespace, if its number is low; nothing where `/proc` is missing.
#[cfg(target_os = "linux")]
fn namespace_of(number: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let found = (number <= LOW).then(|| std::fs::metadata("/proc/self/ns/pid").ok()).flatten();
    found.map(|found| found.ino())
}

/// Elsewhere a process has one number.
#[cfg(not(target_os = "linux"))]
fn namespace_of(_number: u32) -> Option<u64> {
    None
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
