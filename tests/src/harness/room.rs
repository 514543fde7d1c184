//! Limits how many heavy processes run at a time. If all tests that run side by side started their servers at once, the
//! servers would wait for the processors for longer than the bounds of the tests allow.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a test waits for places. Two tests that have some places and want more could wait for each other for ever.
/// So after this time, a test takes its places even if not enough of them are free.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A limited number of places. Each check of this process takes as many as it has heavy processes, and gives them back.
#[derive(Debug)]
pub(super) struct Room {
    size: usize,
    taken: Mutex<usize>,
    left: Condvar,
}

/// Places that a test has taken. They are given back on drop.
#[derive(Debug)]
pub(super) struct Places {
    room: &'static Room,
    count: usize,
}

impl Room {
    /// A room with this number of places.
    pub(super) const fn new(size: usize) -> Self {
        Self { size, taken: Mutex::new(0), left: Condvar::new() }
    }

    /// Waits until this number of places is free, or until [`LONGEST_WAIT`] is over, and takes them.
    pub(super) fn take(&'static self, count: usize) -> Places {
        let begun = Instant::now();
        let mut taken = self.taken();
        while *taken > 0 && *taken + count > self.size && begun.elapsed() < LONGEST_WAIT {
            let waited = self.left.wait_timeout(taken, LONGEST_WAIT);
            taken = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        *taken += count;
        Places { room: self, count }
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *self.room.taken() -= self.count;
        self.room.left.notify_all();
    }
}
