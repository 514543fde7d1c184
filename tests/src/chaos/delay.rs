//! How long the machine keeps threads waiting for a processor, as Linux counts it.
//!
//! The contract's bounds assume that threads get to run. What was withheld is added to them. Time in which a
//! process was stopped does not count: it was not waiting.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

const EVERY: Duration = Duration::from_millis(200);

/// Whose threads are looked after: process ids, which come and go.
pub(super) type Roster = Arc<Mutex<Vec<u32>>>;

/// Watches the threads of the roster until it is dropped.
#[derive(Debug)]
pub(super) struct Delays {
    worst: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delays {
    pub(super) fn start(roster: Roster) -> Self {
        let worst = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (found, over) = (Arc::clone(&worst), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let mut before = BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                let now = waited(&lock(&roster).clone());
                for (thread, waited) in &now {
                    let already = before.get(thread).copied().unwrap_or(*waited);
                    found.fetch_max(waited.saturating_sub(already), Ordering::Relaxed);
                }
                before = now;
                thread::sleep(EVERY);
            }
        });
        Self { worst, is_over, thread: Some(thread) }
    }

    /// The longest that a thread has waited within a fifth of a second; it begins anew.
    pub(super) fn take(&self) -> Duration {
        Duration::from_nanos(self.worst.swap(0, Ordering::Relaxed))
    }

    pub(super) fn worst(&self) -> Duration {
        Duration::from_nanos(self.worst.load(Ordering::Relaxed))
    }
}

impl Drop for Delays {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// How long each thread of these processes has ever waited, in nanoseconds.
fn waited(processes: &[u32]) -> BTreeMap<(u32, String), u64> {
    let mut waited = BTreeMap::new();
    for process in processes {
        for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten()
        {
            let statistics =
                fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let second = statistics.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            if let Some(nanos) = second {
                waited.insert((*process, thread.file_name().to_string_lossy().into_owned()), nanos);
            }
        }
    }
    waited
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_this_process_are_found() {
        let waited = waited(&[std::process::id()]);
        assert!(
            !waited.is_empty() && waited.keys().all(|(process, _)| *process == std::process::id())
        );
    }
}
