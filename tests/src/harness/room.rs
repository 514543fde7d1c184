//! A semaphore for heavy processes: of the tests that run side by side, not all may start their servers at once. The
//! servers would keep one another from the processors for longer than the bounds of the tests allow.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A test that has some places and wants more could wait for another such test for ever. After this time it takes its
/// places although there are not enough.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A limited number of places, which checks in this process take and return.
#[derive(Debug)]
pub(super) struct Room {
    size: usize,
    taken: Mutex<usize>,
    left: Condvar,
}

/// Places that a test has taken; they are given back on drop.
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

    /// Waits until this number of places is free, or [`LONGEST_WAIT`] is over, and takes them.
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
