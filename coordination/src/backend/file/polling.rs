//! Stands for `waking.rs` on systems without inotify: nobody is woken, so waiters poll.

use std::time::Duration;

use super::queue::Locked;
use super::store::Store;
use crate::backend::SessionId;
use crate::error::Result;
use crate::key::QueueKey;

/// There is none.
pub(super) enum Waiting {}

impl Store {
    pub(super) fn listen(
        &self,
        _key: &QueueKey,
        _session: Option<SessionId>,
        _blocker: Option<(u64, SessionId)>,
    ) -> Result<Option<Waiting>> {
        Ok(None)
    }

    pub(super) fn keep_socket(&self, _session: SessionId) {}

    pub(super) fn wake_blocked(&self, _queue: &Locked<'_>, _seq: u64) {}
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
