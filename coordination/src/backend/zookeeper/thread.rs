//! A thread for the client crate, for sessions that run on the program's runtime.
//!
//! The client crate uses async-io for sockets and timers, which has one reactor for the whole process, protected by mutexes.
//! Suppose that the crate's task were on the program's runtime, and that a forked child drops its copy of this runtime. Then the
//! crate's task would be dropped in the child, and dropping the task locks such a mutex. Another thread of the parent may have had
//! that mutex locked at the moment of the fork, and in the child nobody would unlock it, so the child would hang. Therefore the
//! crate's task is on a runtime that no child drops.

use std::convert::Infallible;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own. The thread ends when this is dropped.
pub(super) struct ClientThread {
    runtime: Handle,
    /// Nothing is ever sent by this. When it is dropped, the thread ends.
    _alive: oneshot::Sender<Infallible>,
}

impl ClientThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        let run = move || {
            let _ = runtime.block_on(ended);
            // A plain drop of the runtime would wait for the look-up of a name, even if the look-up hangs.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("coordination-zookeeper".into()).spawn(run)?;
        Ok(Self { runtime: handle, _alive: alive })
    }

    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }
}
