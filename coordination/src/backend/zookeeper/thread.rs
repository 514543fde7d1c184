//! A thread for the client crate, for the case that the session itself runs on the program's runtime.
//!
//! The client crate uses async-io for sockets and timers, which has one reactor per process, behind mutexes. If a forked child
//! dropped its copy of a runtime, it would drop the crate's task there, which locks such a mutex. Another thread of the parent may
//! have held that mutex at the moment of the fork, and in the child nobody would unlock it. So the crate's task is on a runtime
//! that no child drops.

use std::convert::Infallible;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own, which ends when this is dropped.
pub(super) struct ClientThread {
    runtime: Handle,
    /// Nothing is ever sent. The thread ends when this sender is dropped.
    _alive: oneshot::Sender<Infallible>,
}

impl ClientThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        let run = move || {
            let _ = runtime.block_on(ended);
            // Dropping the runtime would wait for a name look-up that hangs.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("coordination-zookeeper".into()).spawn(run)?;
        Ok(Self { runtime: handle, _alive: alive })
    }

    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }
}
