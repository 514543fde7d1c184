//! Which process this is: recognises a forked child. A forked child has a copy of its parent's memory, but not the parent's
//! threads. Open files belong to both processes, and so does the kernel's list of the files that a runtime listens to.
//!
//! So the child must not drop what the parent has made. Dropping it could end the parent's session or stop its notifications, or
//! wait for ever for a mutex that was locked, at the fork, by a thread that the child does not have.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A pid namespace numbers its processes from 1 on. A child that is forked into a new pid namespace gets a low number, which may
/// also be its parent's number: a container's first process has 1, too. So up to this number the namespaces are compared as well.
#[cfg(linux_kernel)]
const LOW: u32 = 300;

/// The process in which something was made. A fork of that process has to be told apart from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    number: u32,
    /// If the number is low: the pid namespace in which the process has this number.
    namespace: Option<u64>,
}

impl Process {
    /// The process that calls this.
    pub(crate) fn this() -> Self {
        let number = std::process::id();
        Self { number, namespace: namespace_of(number) }
    }

    /// Whether this is still the same process, and not a child that was forked since.
    pub(crate) fn is_this(self) -> bool {
        let number = std::process::id();
        let is_same = |was: u64| namespace_of(number).is_none_or(|is| is == was);
        // Without `/proc` no namespace can be read, and only the numbers are compared.
        self.number == number && self.namespace.is_none_or(is_same)
    }
}

/// This process' pid namespace, if its number is low; `None` if `/proc` is missing.
#[cfg(linux_kernel)]
fn namespace_of(number: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let found = (number <= LOW).then(|| std::fs::metadata("/proc/self/ns/pid").ok()).flatten();
    found.map(|found| found.ino())
}

/// Systems other than Linux have no pid namespaces, so there a number alone identifies a process.
#[cfg(not(linux_kernel))]
fn namespace_of(_number: u32) -> Option<u64> {
    None
}

/// A future, or one end of a channel, that a forked child forgets instead of dropping it.
pub(crate) struct Unforked<F> {
    /// `None` only while this is being dropped.
    future: Option<F>,
    process: Process,
}

impl<F> Unforked<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(future), process: Process::this() }
    }

    /// What it was made of; for the process that made it, as dropping that is not safe in a fork.
    pub(crate) fn into_inner(mut self) -> Option<F> {
        self.future.take()
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
