//! Which writes may still come late: a call of theirs was given up, and has had no answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// How many writes without an answer are remembered.
const REMEMBERED: usize = 1024;

/// How many calls of each write, by its id, were sent and not answered.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<HashMap<u64, u32>>);

impl Unanswered {
    /// A call of this write is being sent.
    pub(super) fn sent(&self, id: u64) {
        let mut writes = self.writes();
        if writes.len() >= REMEMBERED {
            // Those were given up for good, and nobody was told that they were done.
            writes.clear();
        }
        *writes.entry(id).or_default() += 1;
    }

    /// A call of this write was answered. Whether another one may still be on its way.
    pub(super) fn answered(&self, id: u64) -> bool {
        let mut writes = self.writes();
        let Some(left) = writes.get_mut(&id) else { return false };
        *left = left.saturating_sub(1);
        let is_in_doubt = *left > 0;
        if !is_in_doubt {
            writes.remove(&id);
        }
        is_in_doubt
    }

    /// No other call of this write can have an effect.
    pub(super) fn forget(&self, id: u64) {
        self.writes().remove(&id);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_in_doubt_until_each_of_its_calls_was_answered() {
        let calls = Unanswered::default();
        calls.sent(1);
        calls.sent(2);
        assert!(!calls.answered(1), "it was sent once");
        calls.sent(2);
        calls.sent(2);
        assert!(calls.answered(2), "two more were sent");
        calls.forget(2);
        assert!(!calls.answered(2) && calls.writes().is_empty());
    }

    #[test]
    fn not_all_are_remembered() {
        let calls = Unanswered::default();
        (0..2 * REMEMBERED as u64).for_each(|id| calls.sent(id));
        assert!(calls.writes().len() <= REMEMBERED);
    }
}
