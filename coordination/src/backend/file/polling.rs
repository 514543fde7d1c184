//! Stands for `inotify.rs` on systems without inotify: nothing is notified, so waiters poll.

use std::path::Path;
use std::time::Duration;

use crate::backend::SessionId;

/// Grants no subscription.
pub(super) struct Watcher;

/// There is none.
pub(super) enum Waiting {}

impl Watcher {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn listen(
        &self,
        _queue: &Path,
        _session: Option<SessionId>,
        _sessions: &Path,
        _make_room: impl FnOnce() -> bool,
    ) -> Option<Waiting> {
        None
    }
}

impl Waiting {
    pub(super) async fn unless<E>(
        &self,
        _check: impl Future<Output = Result<bool, E>>,
        _recheck: Duration,
    ) -> Result<bool, E> {
        match *self {}
    }
}
