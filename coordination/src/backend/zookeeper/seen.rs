//! What a write of a value goes by.

use super::client::Found;
use super::entry::number;
use crate::backend::server::memo::Memo;
use crate::key::QueueKey;

/// What a write goes by, as it was read.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// How often the node above was changed.
    pub(super) removals: i32,
    /// The value's version and its node's count of changes; `None`: there is none.
    pub(super) value: Option<(u64, i32)>,
    /// Whether the queue has a node.
    pub(super) is_there: bool,
}

impl Seen {
    /// `None`: there is no node above.
    pub(super) fn new(
        above: Option<&Found>,
        value: Option<&Found>,
        is_there: bool,
    ) -> Option<Self> {
        let value = value.map(|found| (number(found.stat.mzxid), found.stat.version));
        Some(Self { removals: above?.stat.version, value, is_there })
    }
}

/// How queues were when they were read last: a write that goes by it needs no look of its own. If it is not so any
/// longer, nothing is written.
#[derive(Default)]
pub(super) struct LastSeen(Memo<QueueKey, Seen>);

impl LastSeen {
    pub(super) fn note(
        &self,
        queue: &QueueKey,
        above: Option<&Found>,
        value: Option<&Found>,
        is_there: bool,
    ) {
        if let Some(seen) = Seen::new(above, value, is_there) {
            self.0.note(queue.clone(), seen);
        }
    }

    /// How the queue was, if its value had this version; only once.
    pub(super) fn take(&self, queue: &QueueKey, expected: Option<u64>) -> Option<Seen> {
        let seen = self.0.update(queue.clone(), Option::take)?;
        (seen.value.map(|(version, _)| version) == expected).then_some(seen)
    }
}
