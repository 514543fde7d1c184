//! A thread for the client crate, where the session itself is on the program's runtime.
//!
//! The crate's sockets and timers are async-io's, of which a process has one reactor, under mutexes. A forked child that drops
//! its copy of a runtime drops the tasks of that runtime, and would wait for a mutex that a thread had locked which the child
//! does not have. So the crate's task is on a runtime which no child drops.

use std::convert::Infallible;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own, which ends when this is dropped.
pub(super) struct ClientThread {
    runtime: Handle,
    /// Nothing is sent: that it is dropped ends the thread.
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
