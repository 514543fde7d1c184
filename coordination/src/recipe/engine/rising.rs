//! A number at the store by which a waiter notices what was undone before the waiter could read it.

use super::queue::Seen;

/// A number that rises whenever what a call waits for happens, as the call has seen it.
///
/// The number falls only if the store has lost its newest data, as after a restore from an older snapshot. From then on it rises from
/// where it is now, and may have risen often before it is larger than it was before.
#[derive(Debug, Default)]
pub(crate) struct Rising {
    /// From where it rises: the first number that the call has read, or a lower one that it has read since.
    from: Option<u64>,
}

impl Rising {
    /// Whether the number has risen since the call began. Of a view, which the call confirms by a read: whether it may have risen or
    /// fallen.
    pub(crate) fn has_risen(&mut self, number: u64, seen: Seen) -> bool {
        let from = self.from.get_or_insert(number);
        match seen {
            // Only a read may lower the number. A view may be older than the call, so its lower number may be one from before the
            // call: the next read would then seem to have risen, although nothing has happened.
            Seen::Read => {
                *from = number.min(*from);
                number > *from
            }
            Seen::View => number != *from,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_risen_when_a_read_says_so() {
        let mut rising = Rising::default();
        assert!(!rising.has_risen(7, Seen::Read) && !rising.has_risen(7, Seen::View));
        assert!(rising.has_risen(8, Seen::View) && rising.has_risen(8, Seen::Read));
    }

    #[test]
    fn a_number_rises_again_after_a_restore() {
        let mut rising = Rising::default();
        assert!(!rising.has_risen(7, Seen::Read));
        assert!(rising.has_risen(3, Seen::View), "it is to be read");
        assert!(!rising.has_risen(3, Seen::Read) && !rising.has_risen(3, Seen::View));
        assert!(rising.has_risen(4, Seen::View) && rising.has_risen(4, Seen::Read));
    }

    #[test]
    fn a_late_view_lowers_nothing() {
        let mut rising = Rising::default();
        assert!(!rising.has_risen(7, Seen::Read));
        assert!(rising.has_risen(3, Seen::View), "it is to be read");
        assert!(!rising.has_risen(7, Seen::Read), "the number is the one from before");
    }
}
