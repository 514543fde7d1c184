//! Entries: updated and removed, whatever calls about them may still be under way.

use std::sync::Arc;

use super::TxnKv;
use super::txn::{Change, Condition, Outcome, Transact, Txn, WriteFence};
use crate::backend::server::stored::StoredEntry;
use crate::backend::{EntryRef, Mode, NewEntry};
use crate::error::{Effect, Error, ErrorKind, Result};

/// What became of an entry that was to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It is gone for good: its key may be [freed](super::KeyPool::free).
    Gone,
    /// It is gone, and a call may put it all the same, which the store has no room to rule out: its key is freed
    /// [later](super::leaving).
    InDoubt,
}

/// What became of a write fence that was to be ended.
enum Ended {
    /// And the entry's key was deleted with that.
    Now,
    Before,
    /// There is no room for that.
    Later,
}

impl<T: Transact> TxnKv<T> {
    /// See [`Entries::update`](crate::backend::Entries::update).
    pub(crate) async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let (entry_ref, key) = (&entry.entry_ref, self.key(&entry.entry_ref));
        let Some(own) = self.key_pool.own(entry_ref) else { return Ok(false) };
        if own.mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // Others may hold beside it; and where its key says that it is shared, shared ones do not look for it.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        let mut known = own.known.updated.unwrap_or(seq);
        // An update before may have had its effect without our knowledge: once more, then.
        for _ in 0..2 {
            let update = Txn {
                // No other entry has it, and neither has this one when another update was later.
                conditions: vec![Condition::Version(key.clone(), known)],
                changes: vec![Change::Hold(key.clone(), value.clone(), entry.session)],
                looks: vec![key.clone()],
            };
            let found = match self.store.commit("update", update).await? {
                Outcome::Done(version) => {
                    self.key_pool.updated(entry_ref, version, entry.mode);
                    return Ok(true);
                }
                Outcome::Refused(found) => found.into_iter().next().flatten(),
            };
            let is_own = |kept: &_| self.is_of(kept, entry.session) && kept.created == seq;
            let Some(own) = found.filter(is_own) else { return Ok(false) };
            known = own.version;
            if own.value == value {
                self.key_pool.updated(entry_ref, known, entry.mode);
                return Ok(true);
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "update", "it was updated by somebody else");
        Err(error.with_effect(Effect::None))
    }

    /// See [`Entries::leave`](crate::backend::Entries::leave).
    pub(crate) async fn leave(
        self: &Arc<Self>,
        entry: &EntryRef,
        seq: Option<u64>,
    ) -> Result<Left> {
        let Some(write_fence) = self.in_doubt(entry) else {
            self.delete(entry, seq).await?;
            return Ok(Left::Gone);
        };
        // A call that was given up may still reach the servers.
        match self.end_or_wait(entry, &write_fence).await? {
            Ended::Now => Ok(Left::Gone),
            Ended::Before => {
                self.delete(entry, seq).await?;
                Ok(Left::Gone)
            }
            Ended::Later => {
                self.delete(entry, seq).await?;
                self.leave_later(write_fence.session, entry);
                Ok(Left::InDoubt)
            }
        }
    }

    async fn delete(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.key(entry);
        match (self.key_pool.delete(entry), seq) {
            (true, _) => {
                let deleted = self.store.delete(&key, None).await;
                if deleted.as_ref().is_err_and(|error| error.effect() == Effect::None) {
                    self.key_pool.not_deleted(entry);
                }
                deleted
            }
            (false, Some(_)) => self.store.delete(&key, seq).await,
            // Of one that is none of ours, or not any longer, there is nothing without a number.
            (false, None) => Ok(()),
        }
    }

    /// Ends the write fence under which the entry may still be put, unless it is known that there is no room for that: then
    /// nobody waits for others who have to try.
    async fn end_or_wait(
        self: &Arc<Self>,
        entry: &EntryRef,
        write_fence: &WriteFence,
    ) -> Result<Ended> {
        let lacks_room = || self.later.lacks_room(write_fence.session);
        if lacks_room() {
            return Ok(Ended::Later);
        }
        let turn = self.ending_turn().await;
        // The one before may have found that out.
        if lacks_room() {
            return Ok(Ended::Later);
        }
        let delete = vec![Change::Delete(self.key(entry))];
        match self.end_in_turn(&turn, "leave", write_fence, delete).await {
            Ok(true) => Ok(Ended::Now),
            Ok(false) => Ok(Ended::Before),
            Err(error) if error.kind() == ErrorKind::Quota => {
                self.await_room(write_fence.session);
                Ok(Ended::Later)
            }
            Err(error) => Err(error),
        }
    }
}
