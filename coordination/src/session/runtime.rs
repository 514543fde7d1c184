//! Where a session's tasks run.

use std::future::Future;
use std::io;
use std::thread::{self, ThreadId};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};

use crate::env::{self, blocking};
use crate::error::{Error, ErrorKind, Result};

/// This thread, if the runtime that runs this task has no other.
pub(super) fn only_thread() -> Option<ThreadId> {
    let is_only = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    is_only.then(|| thread::current().id())
}

/// A runtime for a session's tasks.
pub(crate) enum Runtime {
    /// A thread of its own, so that a blocked executor of the program cannot stop the heartbeat.
    Own,
    /// The caller's. A program whose executor hangs loses its locks; and if a test has paused tokio's clock, it is
    /// paused for the session too.
    Current(Handle),
}

impl Runtime {
    /// The caller's runtime if that is wanted and there is one; otherwise one of the session's own.
    pub(crate) fn choose(current: bool) -> Self {
        match Handle::try_current() {
            // A blocking caller may keep the only thread of its runtime from running the session.
            Ok(handle) if current && !blocking::is_blocking() => Self::Current(handle),
            _ => Self::Own,
        }
    }

    /// Starts the session's main task; its runtime ends with it.
    pub(crate) fn start(self, main: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        match self {
            Self::Current(handle) => drop(env::spawn(&handle, main)),
            Self::Own => {
                let failed = |error: io::Error| {
                    let message = format!("cannot start the session's thread: {error}");
                    Error::new(ErrorKind::Storage, "connect", message).with_source(error)
                };
                let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
                let thread = thread::Builder::new().name("coordination".into());
                let run = move || {
                    runtime.block_on(main);
                    // Dropping the runtime would wait for a name look-up that hangs.
                    runtime.shutdown_background();
                };
                thread.spawn(run).map_err(failed)?;
            }
        }
        Ok(())
    }
}
