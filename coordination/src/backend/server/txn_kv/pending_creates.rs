//! Remembers the writes that create a value and are not answered yet. If a call of such a write was given up and the write is
//! repeated, two calls of the same write may be under way.
//!
//! Assume that the first of two such calls creates the value, and that somebody removes the value before the second call arrives.
//! The second call finds no value, as it expects, and would create the value once more. To prevent this, a removal puts a key, the
//! mark, which stays until the session that removed the value ends. All calls of a write have the condition that the mark has the
//! version that it had before the first of these calls.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// How many unanswered writes are remembered at most.
const REMEMBERED: usize = 1024;

/// For each write, by its id: how many of its calls were sent and not answered, and which version of the mark they expect.
#[derive(Default)]
pub(crate) struct PendingCreates(Mutex<HashMap<u64, Calls>>);

#[derive(Clone, Copy)]
struct Calls {
    /// How many calls were sent and not answered.
    count: u32,
    /// The version of the mark that these calls expect; zero: they expect that there is no mark.
    mark: u64,
}

impl PendingCreates {
    /// The version of the mark that the earlier calls of this write expect, so that further calls expect the same version. Zero:
    /// the earlier calls expect that there is no mark, or there is no earlier call.
    pub(crate) fn mark(&self, id: u64) -> u64 {
        self.writes().get(&id).map_or(0, |calls| calls.mark)
    }

    /// Notes that a call of this write is sent now, which expects that the mark has this version.
    pub(crate) fn sent(&self, id: u64, mark: u64) {
        let mut writes = self.writes();
        if writes.len() >= REMEMBERED {
            // The callers of nearly all these writes have given up for good, so the writes may be forgotten. If a caller repeats a
            // write after all, it is not known here any more that an earlier call of the write may still arrive.
            writes.clear();
        }
        let calls = writes.entry(id).or_insert(Calls { count: 0, mark });
        calls.count += 1;
    }

    /// Notes that a call of this write was answered. True: another call of this write was not answered, so it may still be under
    /// way, or may have been carried out before.
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

    /// Forgets a write, because no other call of it can take effect any more.
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
