//! Where a session's tasks run.

use std::future::Future;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::error::{Error, ErrorKind, Result};
use crate::world;

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
            Ok(handle) if current => Self::Current(handle),
            _ => Self::Own,
        }
    }

    /// Starts the session's main task; its runtime ends with it.
    pub(crate) fn start(self, main: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        match self {
            Self::Current(handle) => drop(world::spawn(&handle, main)),
            Self::Own => {
                let failed = |error| {
                    Error::new(
                        ErrorKind::Unsupported,
                        "connect",
                        "cannot start the session's thread",
                    )
                    .with_source(error)
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
