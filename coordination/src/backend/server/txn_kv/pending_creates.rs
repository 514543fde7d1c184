//! Remembers the writes that create a value and are not answered yet. If a call of such a write was given up and the write is
//! repeated, two calls of the same write may be under way.
//!
//! Assume that the first of two such calls creates the value, and that somebody removes the value before the second call arrives.
//! The second call finds no value, as it expects, and would create the value once more. To prevent this, a removal puts a key, the
//! mark, which stays until the session that removed the value ends. All calls of a write have the condition that the mark still has
//! the version that it had before the first of these calls was sent. So the second call is refused as long as the mark exists.

use crate::backend::Write;
use crate::backend::pending_writes::PendingWrites;

/// For each write: how many of its calls were sent and not answered, and which version of the mark they expect.
#[derive(Default)]
pub(crate) struct PendingCreates(PendingWrites<Calls>);

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
    pub(crate) fn mark(&self, write: &Write) -> u64 {
        self.0.get(write).map_or(0, |calls| calls.mark)
    }

    /// Notes that a call of this write is sent now, which expects that the mark has this version.
    pub(crate) fn sent(&self, write: &Write, mark: u64) {
        self.0.update(write, |calls| calls.get_or_insert(Calls { count: 0, mark }).count += 1);
    }

    /// Notes that a call of this write was answered. True: another call of this write was not answered, so it may still be under
    /// way, or may have been carried out before.
    pub(crate) fn answered(&self, write: &Write) -> bool {
        self.0.update(write, |known| {
            let left = known.map(|calls| Calls { count: calls.count.saturating_sub(1), ..calls });
            *known = left.filter(|calls| calls.count > 0);
            known.is_some()
        })
    }

    /// Forgets a write, because no other call of it can take effect any more.
    pub(crate) fn forget(&self, write: &Write) {
        self.0.forget(write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::QueueKey;

    #[test]
    fn a_write_is_in_doubt_until_each_of_its_calls_was_answered() {
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let [first, second] = [(); 2].map(|()| Write::new(&queue, None, None));
        let calls = PendingCreates::default();
        calls.sent(&first, 0);
        calls.sent(&second, 7);
        assert!(!calls.answered(&first), "it was sent once");
        calls.sent(&second, 7);
        calls.sent(&second, 7);
        assert_eq!((calls.mark(&first), calls.mark(&second)), (0, 7));
        assert!(calls.answered(&second), "two more were sent");
        calls.forget(&second);
        assert!(!calls.answered(&second));
        assert_eq!(calls.mark(&second), 0);
    }
}
