//! Writes that create a value and of which more than one call may be under way, because one of their calls was given up.
//!
//! If the first of two such calls creates the value, and somebody removes the value before the second arrives, the second finds
//! no value, as it expects, and would create the value once more. So a removal leaves a mark for a while, and all calls of a
//! write have the condition that the mark is as it was before the first of them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The largest number of unanswered writes that are remembered.
const REMEMBERED: usize = 1024;

/// How many calls of each write, by its id, were sent and not answered.
#[derive(Default)]
pub(crate) struct PendingCreates(Mutex<HashMap<u64, Calls>>);

#[derive(Clone, Copy)]
struct Calls {
    count: u32,
    mark: u64,
}

impl PendingCreates {
    /// The version of the mark that all calls of this write expect. Zero: they expect no mark, or no call was sent before.
    pub(crate) fn mark(&self, id: u64) -> u64 {
        self.writes().get(&id).map_or(0, |calls| calls.mark)
    }

    /// Notes that a call of this write is sent, which expects the mark in this version.
    pub(crate) fn sent(&self, id: u64, mark: u64) {
        let mut writes = self.writes();
        if writes.len() >= REMEMBERED {
            // Nearly all of these writes were given up for good, and no caller was told that they were carried out. If one is
            // repeated after all, its earlier call is not known any more.
            writes.clear();
        }
        let calls = writes.entry(id).or_insert(Calls { count: 0, mark });
        calls.count += 1;
    }

    /// Notes that a call of this write was answered. True: another call of it may still be under way, or may have arrived first.
    pub(crate) fn answered(&self, id: u64) -> bool {
        let mut writes = self.writes();
        let Some(calls) = writes.get_mut(&id) else { return false };
        calls.count = calls.count.saturating_sub(1);
        let is_in_doubt = calls.count > 0;
        if !is_in_doubt {
            writes.remove(&id);
        }
        is_in_doubt
    }

    /// Forgets a write of which no other call can take effect.
    pub(crate) fn forget(&self, id: u64) {
        self.writes().remove(&id);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<u64, Calls>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_in_doubt_until_each_of_its_calls_was_answered() {
        let calls = PendingCreates::default();
        calls.sent(1, 0);
        calls.sent(2, 7);
        assert!(!calls.answered(1), "it was sent once");
        calls.sent(2, 7);
        calls.sent(2, 7);
        assert_eq!((calls.mark(1), calls.mark(2)), (0, 7));
        assert!(calls.answered(2), "two more were sent");
        calls.forget(2);
        assert!(!calls.answered(2) && calls.writes().is_empty());
    }

    #[test]
    fn not_all_are_remembered() {
        let calls = PendingCreates::default();
        (0..2 * REMEMBERED as u64).for_each(|id| calls.sent(id, 0));
        assert!(calls.writes().len() <= REMEMBERED);
    }
}
