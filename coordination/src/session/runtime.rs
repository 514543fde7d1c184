//! The runtime on which a session's tasks run.

use std::future::Future;
use std::io;
use std::thread::{self, ThreadId};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};

use crate::env::{self, blocking};
use crate::error::{Error, ErrorKind, Result};

/// This thread, if it is the only one of the runtime that runs this task.
pub(super) fn only_thread() -> Option<ThreadId> {
    let is_only = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    is_only.then(|| thread::current().id())
}

/// A runtime for a session's tasks.
pub(crate) enum Runtime {
    /// A thread of its own, so that a blocked executor of the program cannot stop the heartbeat.
    Own,
    /// The caller's runtime. If its executor hangs, the program loses its locks; and if a test has paused tokio's clock, it is
    /// paused for the session too.
    Current(Handle),
}

impl Runtime {
    /// The caller's runtime if that is wanted and there is one; otherwise one of the session's own.
    pub(crate) fn choose(current: bool) -> Self {
        match Handle::try_current() {
            // A caller who blocks may block the only thread of its runtime, and then the session could not run there.
            Ok(handle) if current && !blocking::is_blocking() => Self::Current(handle),
            _ => Self::Own,
        }
    }

    /// Starts the session's main task. The session's own runtime ends with this task.
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
                    // Dropping the runtime would wait for a name lookup that hangs.
                    runtime.shutdown_background();
                };
                thread.spawn(run).map_err(failed)?;
            }
        }
        Ok(())
    }
}
