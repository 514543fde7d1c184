//! What gives a store no rest: something is done to it each second.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const EACH: Duration = Duration::from_secs(1);

/// Does it until this is dropped.
pub(super) struct Restless {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Restless {
    /// `act` fails silently while a check has stopped a server.
    pub(super) fn start(mut act: impl FnMut() + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EACH) {
                act();
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Restless {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Restless").finish_non_exhaustive()
    }
}
