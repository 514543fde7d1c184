//! Entries: updated and removed, whatever calls about them may still be under way.

use super::TxnKv;
use super::txn::{Change, Condition, Outcome, Transact, Txn};
use crate::backend::server::stored::StoredEntry;
use crate::backend::{EntryRef, Mode, NewEntry};
use crate::error::{Effect, Error, ErrorKind, Result};

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

    /// See [`Entries::leave`](crate::backend::Entries::leave). The key must not be used again before it is
    /// [freed](super::KeyPool::free).
    pub(crate) async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let key = self.key(entry);
        if let Some(write_fence) = self.in_doubt(entry) {
            // A call that was given up may still reach the servers.
            let delete = Some(Change::Delete(key.clone()));
            if self.end("leave", &write_fence, delete).await? {
                return Ok(());
            }
        }
        match (self.key_pool.delete(entry), seq) {
            (true, _) => self.store.delete(&key, None).await,
            (false, Some(_)) => self.store.delete(&key, seq).await,
            // Of one that is none of ours, or not any longer, there is nothing without a number.
            (false, None) => Ok(()),
        }
    }
}
