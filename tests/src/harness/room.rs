//! Room for heavy processes: of the tests that run side by side not all start theirs at once, where that would keep
//! each of them from its processor for longer than its bounds allow.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A test that has some and wants more must not wait for ever for another such one.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Has so many places, for this process.
#[derive(Debug)]
pub(super) struct Room {
    size: usize,
    taken: Mutex<usize>,
    left: Condvar,
}

/// Some of them, until dropped.
#[derive(Debug)]
pub(super) struct Places {
    room: &'static Room,
    count: usize,
}

impl Room {
    /// With so many places.
    pub(super) const fn new(size: usize) -> Self {
        Self { size, taken: Mutex::new(0), left: Condvar::new() }
    }

    /// Waits until there are so many.
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
