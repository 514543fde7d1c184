//! Threads that connect to a store and disconnect again, over and over, while a check runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use coordination::Result;
use coordination::blocking::Coordinator;

const THREADS: usize = 24;

/// Threads that connect and stop until this value is dropped. The drop panics if any of the threads had an error when
/// it connected or stopped.
#[derive(Debug)]
pub struct Connecting {
    end: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Connecting {
    /// Starts the threads. After each time that a thread has connected and stopped, it sleeps for `pause`.
    pub fn start(url: &str, pause: Duration) -> Self {
        let (end, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let thread = |_| {
            let (url, end, count) = (url.to_owned(), Arc::clone(&end), Arc::clone(&count));
            thread::spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    Coordinator::connect(&url)?.stop()?;
                    count.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(pause);
                }
                Ok(())
            })
        };
        let threads = (0..THREADS).map(thread).collect();
        Self { end, count, threads }
    }

    /// How often the threads have connected and stopped so far, all together.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether any thread has ended because of an error.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let outcome = thread.join().expect("no panic");
            // If the check has panicked already, another panic here would hide the check's own message.
            if !thread::panicking() {
                outcome.expect("it connects and stops while others do");
            }
        }
    }
}
