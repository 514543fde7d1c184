//! Threads that connect and stop for as long as a check runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use coordination::Result;
use coordination::blocking::Coordinator;

/// How many.
const THREADS: usize = 24;

/// Threads that connect and stop until this is dropped, which panics when one of them could not.
#[derive(Debug)]
pub struct Connecting {
    end: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Connecting {
    /// Starts them; each pauses for so long after each time.
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

    /// How often they have connected so far.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether one of them has given up.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let outcome = thread.join().expect("no panic");
            // What a check says comes first.
            if !thread::panicking() {
                outcome.expect("it connects and stops while others do");
            }
        }
    }
}
