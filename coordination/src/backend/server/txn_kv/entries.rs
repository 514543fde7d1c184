//! Updating and removing an entry while earlier calls about the same entry may still be under way.

use std::sync::Arc;

use super::TxnKv;
use super::txn::{Change, Condition, Outcome, Transact, Txn, WriteFence};
use crate::backend::server::stored::StoredEntry;
use crate::backend::{EntryRef, Mode, NewEntry};
use crate::error::{Effect, Error, ErrorKind, Result};

/// What [`leave`](TxnKv::leave) has done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The entry is gone for good, and its key may be [freed](super::KeyPool::free) for another entry.
    Gone,
    /// The entry's key is deleted. But a call that was given up may put the key again, and the store has no space for the write
    /// that would prevent that. The key is freed [later](super::leaving).
    InDoubt,
}

/// What became of the try to end a write fence.
enum Ended {
    /// This call has ended the fence, and has deleted the entry's key in the same transaction.
    Now,
    /// An earlier request, of this task or of another one, had ended the fence already. The entry's key is not deleted yet.
    Before,
    /// The fence is not ended yet, because the store has no space for the put that ends it.
    Later,
}

impl<T: Transact> TxnKv<T> {
    /// See [`Entries::update`](crate::backend::Entries::update).
    pub(crate) async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let (entry_ref, key) = (&entry.entry_ref, self.key(&entry.entry_ref));
        let Some(own) = self.key_pool.own(entry_ref) else { return Ok(false) };
        if own.mode == Mode::Shared && entry.mode == Mode::Exclusive {
            // Other shared entries may hold the lock at the same time. And if the entry's key says that the entry is shared, later
            // shared entries do not even read that key, so they would not wait for the entry.
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        let value = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        let mut known = own.known.updated.unwrap_or(seq);
        // The answer of an earlier update may have been lost although the update took effect. Then the key has another version than
        // the one expected here, and this update is tried a second time, with the version that was found.
        for _ in 0..2 {
            let update = Txn {
                // The key's version changes when another entry gets the key, and when a later update is made. In both cases this
                // update must have no effect, however late it arrives.
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
        // A call that puts the entry was given up, and may still reach the servers.
        match self.end_or_wait(entry, &write_fence).await? {
            Ended::Now => {
                // The transaction has deleted the key. While the store had no space, an earlier call of `leave` may have sent a
                // delete that was given up. If that delete arrives late, it would remove the next entry with the same key. So both
                // deletes are counted, and if there were two, the key pool does not use the key again in this session.
                self.key_pool.delete(entry);
                Ok(Left::Gone)
            }
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
            // The entry is not ours, or not any more. Its number is not known, so it cannot be distinguished from a later entry
            // with the same key, and nothing is deleted.
            (false, None) => Ok(()),
        }
    }

    /// Ends the write fence under which a late call may still put the entry, and deletes the entry's key. If it is known that the
    /// store has no space, returns at once: the session's [task](super::leaving) tries again for all entries of the session, so
    /// this call need not wait only to find that there is still no space.
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
        // While this call waited for the mutex, another call may have found out that the store has no space.
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
