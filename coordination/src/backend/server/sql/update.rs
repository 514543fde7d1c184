//! A change of an entry of our own, as it is kept to be made again.

use super::Call;
use crate::backend::{EntryId, SessionId};

/// What an update writes into an entry.
pub(super) struct Update {
    pub(super) session: SessionId,
    pub(super) path: String,
    pub(super) seq: u64,
    pub(super) is_shared: bool,
    pub(super) text: Vec<u8>,
}

impl Update {
    /// The call that makes this update of the entry `id`.
    pub(super) fn call(&self, id: &EntryId) -> Call {
        Call::new("update", "update")
            .of(self.session)
            .bytes(self.path.as_str())
            .bytes(id.as_str())
            .flag(self.is_shared)
            .bytes(self.text.as_slice())
            .number(self.seq)
    }
}
