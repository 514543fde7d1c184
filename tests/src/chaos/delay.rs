//! Measures how long the machine keeps threads waiting for a processor, by counters of Linux.
//!
//! The bounds in the clauses assume that threads can run, so this time is added to the bounds. The threads of a paused
//! process do not wait for a processor, so pauses are not counted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::harness::waited;

const EVERY: Duration = Duration::from_millis(200);

/// The ids of the processes whose threads are measured. The list changes when clients are killed and started.
pub(super) type Roster = Arc<Mutex<Vec<u32>>>;

/// The longest time that a thread of these processes waited for a processor, in nanoseconds. A background thread
/// measures it until this value is dropped.
#[derive(Debug)]
pub(super) struct Delays(Arc<AtomicU64>);

impl Delays {
    pub(super) fn start(roster: Roster) -> Self {
        let worst = Arc::new(AtomicU64::new(0));
        let found = Arc::downgrade(&worst);
        thread::spawn(move || {
            let mut before = BTreeMap::new();
            while let Some(found) = found.upgrade() {
                let now = of_all(&lock(&roster).clone());
                for (thread, waited) in &now {
                    let already = before.get(thread).copied().unwrap_or(*waited);
                    found.fetch_max(waited.saturating_sub(already), Ordering::Relaxed);
                }
                before = now;
                thread::sleep(EVERY);
            }
        });
        Self(worst)
    }

    /// Begins to measure again: what was measured before is forgotten.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The longest time that a thread waited between two measurements, which are a fifth of a second apart.
    pub(super) fn worst(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// For each thread of these processes, how long it has waited for a processor since it began. No two threads of the
/// machine have the same id.
fn of_all(processes: &[u32]) -> BTreeMap<String, u64> {
    processes.iter().flat_map(|process| waited(*process)).collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::process::parent_id, process};

    use super::*;

    #[test]
    fn the_threads_of_this_process_are_found() {
        let this = fs::read_link("/proc/thread-self").expect("a thread is running");
        let this = this.file_name().expect("it ends with the id").to_string_lossy().into_owned();
        assert!(of_all(&[process::id()]).contains_key(&this));
        assert!(!of_all(&[parent_id()]).contains_key(&this), "it is nobody else's");
    }
}
