//! Work queues that are in use. One is kept for a while, as it follows what others do, by which it knows when their claims end.

use std::time::Duration;

use coordination::{Coordinator, WorkQueue};

use crate::kept::Kept;
use crate::problem::Problem;

/// The most work queues that are followed.
const MOST: usize = 200;
/// How long one is followed after its last use: longer than a claim lasts, so that one which nobody renews ends in time.
const KEPT: Duration = Duration::from_secs(13 * 3_600);
/// The most bytes that all of them together keep of what they have read, each of them up to 4 MiB.
const BYTES: usize = if cfg!(test) { 2 } else { 32 } * 1024 * 1024;
/// For how long one keeps that after its last use.
const CACHED: Duration = Duration::from_secs(60);

/// By name.
pub(crate) struct Queues(Kept<String, WorkQueue>);

impl Default for Queues {
    fn default() -> Self {
        Self(Kept::new(MOST))
    }
}

impl Queues {
    /// The queue of this name.
    pub(crate) fn queue(
        &self,
        coordinator: &Coordinator,
        name: &str,
    ) -> Result<WorkQueue, Problem> {
        Ok(self.0.get(&name.to_owned(), || coordinator.queue(name))?)
    }

    /// Follows it from now on, for this principal.
    pub(crate) fn keep(&self, owner: &str, name: &str, queue: &WorkQueue) {
        self.0.keep(owner, name.to_owned(), queue);
    }

    /// Forgets those that nobody has used for long, and before that what they have read.
    pub(crate) fn tidy(&self) {
        self.0.forget(|_, unused| unused > KEPT);
        let unused = self.0.by_age().into_iter().filter(|(_, unused)| *unused > CACHED);
        unused.for_each(|(queue, _)| queue.forget_cached());
    }

    /// Frees what was read of those that were used least lately, if all of them together keep too much.
    pub(crate) fn trim(&self) {
        if self.0.sum(WorkQueue::cached_bytes) <= BYTES {
            return;
        }
        let mut queues = self.0.by_age();
        queues.sort_unstable_by_key(|(_, unused)| *unused);
        let mut left = BYTES;
        for (queue, _) in queues {
            let bytes = queue.cached_bytes();
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => queue.forget_cached(),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn forget(&self, name: &str) {
        self.0.forget(|known, _| known == name);
    }

    #[cfg(test)]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.has(&name.to_owned())
    }

    #[cfg(test)]
    pub(crate) fn cached_bytes(&self) -> usize {
        self.0.sum(WorkQueue::cached_bytes)
    }
}
