//! Repeats an action each second in the background, for settings in which something at a store changes all the time.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const EACH: Duration = Duration::from_secs(1);

/// Repeats the action until this value is dropped.
pub(super) struct Restless {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Restless {
    /// Starts the thread that repeats `act`. `act` has to ignore errors, because a check may have stopped the server.
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
