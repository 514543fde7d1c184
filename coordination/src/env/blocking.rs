//! Which threads are in a blocking call, and therefore run no task.

use std::cell::Cell;

thread_local! {
    /// How many blocking calls this thread is in. More than one, if an async body that runs within a blocking call makes another
    /// one.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// A blocking call, from its beginning to its end.
pub(crate) struct Blocking;

impl Blocking {
    pub(crate) fn begin() -> Self {
        CALLS.set(CALLS.get() + 1);
        Self
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

/// Whether this thread is in a blocking call.
pub(crate) fn is_blocking() -> bool {
    CALLS.get() > 0
}
