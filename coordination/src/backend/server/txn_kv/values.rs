//! Queues' values. Each value is a key that belongs to no session, and is written by compare-and-set.
//!
//! A value's version is that of the last change of its key. These versions always rise, even if the key is removed and created
//! again. So a write that arrives late finds another version than it expects, and is refused.
//!
//! The exception is a write that creates the value. Suppose that such a write is carried out, and that somebody then removes the
//! value. If a second call of the same write arrives after that, it finds no value, as it expects, and would create the value once
//! more. Two further conditions prevent that. One is the [write fence](super::write_fence) of a session of ours. The other is a
//! mark, a key that each removal of the value puts, and that is deleted when the session that made the removal ends: see
//! [`pending_creates`](super::pending_creates). Once the mark is deleted, it prevents nothing any more.

use std::sync::Arc;

use super::TxnKv;
use super::keys::Keys;
use super::txn::{Change, Condition, Kept, Outcome, Queue, Transact, Txn, WriteFence};
use super::write_fence::no_session;
use crate::backend::server::stored::{StoredValue, check_name, data_of};
use crate::backend::{Beside, Data, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How many tries a write makes at most. A try fails if something on which its transaction depends has changed since the
/// transaction was prepared.
const TRIES: usize = 4;

/// A write of a value, with what its tries have found out.
struct Writing<'a> {
    write: &'a Write,
    /// The key of the value.
    value: String,
    /// The key of the mark that a removal of the value puts.
    removed: String,
    /// The version that the mark of a removal (the key `removed`) had before the first call of this write was sent; zero: there was
    /// no mark.
    mark: u64,
    /// Whether an earlier call of this write, whose answer was lost, may have taken effect.
    is_in_doubt: bool,
}

/// What became of one try to write.
enum Tried {
    Answer(Option<u64>),
    /// The value, the write fence or the mark has changed since the try was prepared, so another try has to be made.
    Again,
}

impl<T: Transact> TxnKv<T> {
    /// See [`Values::write`](crate::backend::Values::write).
    pub(crate) async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let keys = self.keys(&write.queue);
        let (value, removed) = (keys.key(T::VALUE), keys.key(T::REMOVED));
        let mark = self.pending_creates.mark(write);
        let mut writing = Writing { write, value, removed, mark, is_in_doubt: false };
        for _ in 0..TRIES {
            let tried = self.try_write(&mut writing).await;
            // An error with a loss reason says that the session whose write fence was used is over. But the value does not belong
            // to that session. So the error is replaced by one after which the caller tries again, under its next session.
            let tried = tried.map_err(|error| match error.loss_reason() {
                Some(_) => no_session(),
                None => error,
            });
            if let Tried::Answer(answer) = tried? {
                return Ok(answer);
            }
        }
        let message =
            "entries or the value came and went, or other calls were in doubt, all the time";
        Err(Error::new(ErrorKind::Unavailable, "write", message))
    }

    /// See [`Values::records`](crate::backend::Values::records).
    pub(crate) async fn records(
        &self,
        queue: &QueueKey,
        names: &[Arc<str>],
    ) -> Result<Vec<Option<Data>>> {
        let keys = self.records_of(queue);
        let keys: Vec<_> = names.iter().map(|name| keys.key(name)).collect();
        let found = self.store.fetch(&keys).await?;
        Ok(found.into_iter().map(|found| found.map(data_of)).collect())
    }

    /// The keys of a queue's records. They have another prefix than the queue's other keys, because a read of the queue reads all
    /// keys with the queue's prefix.
    fn records_of(&self, queue: &QueueKey) -> Keys {
        let (kind, name) = (queue.kind(), queue.encoded());
        Keys::new(format!("{}/{kind}~records/{name}/", self.namespace))
    }

    async fn try_write(&self, writing: &mut Writing<'_>) -> Result<Tried> {
        let write_fence = self.write_fences.any()?;
        let alone = match writing.write.if_empty {
            true => self.store.alone(&self.keys(&writing.write.queue), &write_fence).await?,
            false => Queue::Empty(Txn::default()),
        };
        let alone = match alone {
            Queue::Empty(alone) => alone,
            // The queue has an entry, so this call does not write. But an earlier call of this write may have been carried out
            // before that entry was entered.
            Queue::Taken(value) => {
                return writing.written_before(value.as_ref()).map(Tried::Answer);
            }
        };
        let clear = alone.clone();
        let mut txn = writing.txn(alone, &write_fence)?;
        let records = self.records_of(&writing.write.queue);
        txn.changes.extend(writing.write.beside.iter().map(|beside| change_of(beside, &records)));
        let tried = self.commit_write(writing, &write_fence, txn).await;
        if !clear.changes.is_empty() && !matches!(tried, Ok((_, true)) | Err(_)) {
            self.store.commit("write", clear).await?;
        }
        tried.map(|(tried, _)| tried)
    }

    /// Sends the transaction of this write once. Returns what became of this try, and true if the transaction was carried out.
    async fn commit_write(
        &self,
        writing: &mut Writing<'_>,
        write_fence: &WriteFence,
        txn: Txn<T::Check>,
    ) -> Result<(Tried, bool)> {
        let (write, creates) = (writing.write, writing.creates());
        if creates {
            self.pending_creates.sent(write, writing.mark);
        }
        let outcome = match self.store.commit("write", txn).await {
            Err(error) if error.effect() == Effect::Unknown => return Err(error),
            outcome => outcome,
        };
        if creates && self.pending_creates.answered(write) {
            writing.is_in_doubt = true;
            self.end_calls(write, write_fence).await?;
        }
        match outcome? {
            Outcome::Done(version) => {
                let version = write.data.as_ref().map_or(write.expected, |_| Some(version));
                Ok((Tried::Answer(version), true))
            }
            Outcome::Refused(found) => {
                self.refused(writing, write_fence, found).map(|tried| (tried, false))
            }
        }
    }

    /// Finds out why the transaction was refused. `found`: the value, the member's key and the mark, in the order of the
    /// transaction's `looks`.
    fn refused(
        &self,
        writing: &mut Writing<'_>,
        write_fence: &WriteFence,
        found: Vec<Option<Kept>>,
    ) -> Result<Tried> {
        let mut found = found.into_iter();
        let mut next = || found.next().flatten();
        let (value, member, removed) = (next(), next(), next());
        let version = value.as_ref().map(|kept| kept.version);
        if version != writing.write.expected {
            return writing.written_before(value.as_ref()).map(Tried::Answer);
        }
        let is_admitted = write_fence.is_of(member.as_ref());
        if !is_admitted {
            // After this try had read the fence's version, another task has ended the fence because of a call that was given up, or
            // the session has ended. If the session has ended, `learn` fails. Otherwise the next try uses the new write fence.
            self.learn(write_fence, member.as_ref())?;
        }
        let mark = removed.map_or(0, |kept| kept.version);
        if writing.creates() && mark != writing.mark {
            if writing.is_in_doubt {
                // Somebody has removed a value since the first call of this write was sent. Perhaps the first call had created that
                // value, so it is not known whether this write took effect. In this case `write` may return `None`.
                return Ok(Tried::Answer(None));
            }
            writing.mark = mark;
            return Ok(Tried::Again);
        }
        // The value and the mark are as the transaction demands. If the write fence holds too, and if all three were read at the
        // very moment of the refusal, only the condition that the queue has no entry can have failed. If the write fence does not
        // hold, or if the three were read later, the reason for the refusal may be gone by now, so another try is made.
        let has_entries = is_admitted && T::LOOKS_AT_ONCE;
        Ok(if has_entries { Tried::Answer(None) } else { Tried::Again })
    }

    /// Keeps calls of this write that were not answered from taking effect later: ends the write fence, so that the store refuses
    /// all calls that were sent under it.
    async fn end_calls(&self, write: &Write, write_fence: &WriteFence) -> Result<()> {
        match self.end("write", write_fence, Vec::new()).await {
            // If the error says that the session is over, no call under its write fence can take effect any more, so nothing is
            // left to do.
            Err(error) if error.loss_reason().is_none() => Err(error.with_effect(Effect::Unknown)),
            _ => {
                self.pending_creates.forget(write);
                Ok(())
            }
        }
    }
}

fn change_of(beside: &Beside, records: &Keys) -> Change {
    let key = records.key(&beside.name);
    match &beside.data {
        Some(data) => Change::Put(key, data.as_bytes().to_vec()),
        None => Change::Delete(key),
    }
}

impl Writing<'_> {
    /// Whether this write creates the value: only then could a late call of it create the value a second time.
    fn creates(&self) -> bool {
        self.write.expected.is_none() && self.write.data.is_some()
    }

    fn txn<C>(&self, alone: Txn<C>, write_fence: &WriteFence) -> Result<Txn<C>> {
        let Txn { mut conditions, mut changes, .. } = alone;
        let (write, value, removed) = (self.write, self.value.clone(), self.removed.clone());
        let looks = vec![value.clone(), write_fence.key.to_string(), removed.clone()];
        conditions.push(Condition::Version(value.clone(), write.expected.unwrap_or_default()));
        match (&write.data, write.expected) {
            (Some(data), expected) => {
                let text = StoredValue::by(write, data).to_bytes()?;
                changes.push(Change::Put(value, text));
                if expected.is_none() {
                    conditions.push(Condition::Version(removed, self.mark));
                    conditions.push(write_fence.holds());
                }
            }
            (None, Some(_)) => {
                // The mark belongs to the session, so the session must be open. The condition that its write fence holds makes sure
                // of that.
                conditions.push(write_fence.holds());
                changes.push(Change::Delete(value));
                changes.push(Change::Seize(removed, write_fence.session));
            }
            // The write expects that there is no value, and is to leave none: there are only conditions to check, and nothing to
            // change.
            (None, None) => {}
        }
        Ok(Txn { conditions, changes, looks })
    }

    /// If the value that was found has this write's id, an earlier call has made this write, and its answer was lost: returns the
    /// version that this earlier call made. Otherwise returns `None`.
    fn written_before(&self, found: Option<&Kept>) -> Result<Option<u64>> {
        let Some(kept) = found else { return Ok(None) };
        check_name(&self.write.queue, &kept.value)?;
        let is_ours = StoredValue::read(&kept.value)?.id == self.write.id;
        Ok(is_ours.then_some(kept.version))
    }
}
