//! Queues' values: a key each, owned by no session, written by compare-and-set.
//!
//! The version is the key's modification revision, which rises for ever, over removals too. A write that comes late
//! finds another one; only one that creates the value could find it as it expected, once more: so it asks for the
//! [admission](super::admission) of a session of ours. And a removal leaves a mark, which goes with the session that has
//! left it: why, see [`unanswered`](crate::backend::unanswered).

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnResponse};

use super::admission::{Admission, no_session};
use super::entry::{number, revision_of};
use super::keys::{Keys, queue_of_value};
use super::session::lease_of;
use super::{Etcd, found, revision_in};
use crate::backend::stored::{StoredValue, check_name, name_in};
use crate::backend::{Value, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;

/// How often a value is created anew that came and went meanwhile.
const TRIES: usize = 4;
/// How many values are read in one transaction: etcd takes 128, and a value may be large.
const BATCH: usize = 32;

/// The value that this key has.
pub(super) fn value_of(kv: &KeyValue) -> Result<Value> {
    let stored = StoredValue::read(kv.value())?;
    Ok(Value { version: number(kv.mod_revision()), data: stored.data.into() })
}

impl Etcd {
    pub(super) async fn write_value(&self, write: &Write) -> Result<Option<u64>> {
        let keys = self.keys(&write.queue);
        if write.expected.is_none() && write.data.is_some() {
            return self.create(write, &keys).await;
        }
        // One that comes late finds another version.
        let transaction = match write.data {
            Some(_) => replace(write, &keys)?,
            None => remove(write, &keys, &self.admissions.any()?),
        };
        let answer = self.transact("write", transaction).await.map_err(without_session)?;
        if answer.succeeded() {
            let written = number(revision_in(answer.header()));
            return Ok(if write.data.is_some() { Some(written) } else { write.expected });
        }
        written_before(write, &answer)
    }

    /// Writes a value that is not there yet.
    async fn create(&self, write: &Write, keys: &Keys) -> Result<Option<u64>> {
        let (mut mark, mut is_in_doubt) = (self.unanswered.mark(write.id), false);
        for _ in 0..TRIES {
            let admission = self.admissions.any()?;
            let transaction = create(write, keys, mark, &admission)?;
            self.unanswered.sent(write.id, mark);
            let outcome = match self.transact("write", transaction).await {
                Err(error) if error.effect() == Effect::Unknown => return Err(error),
                outcome => outcome,
            };
            if self.unanswered.answered(write.id) {
                is_in_doubt = true;
                self.end_calls(write, &admission).await?;
            }
            let answer = outcome?;
            if answer.succeeded() {
                return Ok(Some(number(revision_in(answer.header()))));
            }
            if !found(&answer, 0).is_empty() {
                return written_before(write, &answer);
            }
            let (member, removed) = (found(&answer, 1), found(&answer, 2));
            let last_mark = removed.first().map_or(0, |kv| number(kv.mod_revision()));
            match member.first() {
                Some(own) if admission.is_of(own) && last_mark == mark => {
                    // It has entries.
                    return Ok(None);
                }
                Some(own) if admission.is_of(own) => {}
                // Calls of others were in doubt meanwhile.
                own => self.admissions.learn(&admission, own).map_err(|_| no_session())?,
            }
            if last_mark != mark && is_in_doubt {
                // It may be what a call before has written that was removed.
                return Ok(None);
            }
            mark = last_mark;
        }
        let message = "the value came and went, or other calls were in doubt, all the time";
        Err(Error::new(ErrorKind::Unavailable, "write", message))
    }

    /// No other call of this write has an effect any more.
    async fn end_calls(&self, write: &Write, admission: &Admission) -> Result<()> {
        let (connections, session) = (&self.connections, admission.session);
        match self.admissions.admit_anew(connections, "write", session, None).await {
            // With the session its admissions have ended.
            Err(error) if error.loss_reason().is_none() => Err(error.with_effect(Effect::Unknown)),
            _ => {
                self.unanswered.forget(write.id);
                Ok(())
            }
        }
    }

    /// The names of the queues of this kind that have a value, in order.
    pub(super) async fn names_of_values(&self, kind: &str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get("list", &prefix, all).await?;
        let queues = answer.kvs().iter().filter_map(|kv| queue_of_value(kv.key(), &prefix));
        let (hashed, plain): (Vec<_>, Vec<_>) = queues.partition(|queue| key::is_hashed(queue));
        let mut names: Vec<_> = plain.into_iter().filter_map(key::unescape).collect();
        for batch in hashed.chunks(BATCH) {
            let value = |queue: &&str| Keys::new(format!("{prefix}{queue}/")).value();
            let reads: Vec<_> = batch.iter().map(|queue| TxnOp::get(value(queue), None)).collect();
            let answer = self.transact("list", Txn::new().and_then(reads)).await?;
            // One that was removed meanwhile has none.
            names.extend(
                (0..batch.len()).filter_map(|nth| name_in(found(&answer, nth).first()?.value())),
            );
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// The version that this write made, if it is what was found: an earlier call of it did that.
fn written_before(write: &Write, answer: &TxnResponse) -> Result<Option<u64>> {
    let found = found(answer, 0);
    let Some(kv) = found.first() else { return Ok(None) };
    check_name(&write.queue, kv.value())?;
    let is_ours = StoredValue::read(kv.value())?.id == write.id;
    Ok(is_ours.then(|| number(kv.mod_revision())))
}

/// The session whose mark was to be left is over.
fn without_session(error: Error) -> Error {
    if error.loss_reason().is_some() { no_session() } else { error }
}

/// Writes the value over another one.
fn replace(write: &Write, keys: &Keys) -> Result<Txn> {
    Ok(expecting(write, keys, vec![put(write, keys)?]))
}

/// Removes the value, and leaves a mark of that under this session.
fn remove(write: &Write, keys: &Keys, admission: &Admission) -> Txn {
    let mut changes = vec![TxnOp::delete(keys.value(), None)];
    if write.expected.is_some() {
        let mark = PutOptions::new().with_lease(lease_of(admission.session));
        changes.push(TxnOp::put(keys.removed(), "", Some(mark)));
    }
    expecting(write, keys, changes)
}

/// Does this if the value is as expected, and tells what it is otherwise.
fn expecting(write: &Write, keys: &Keys, changes: Vec<TxnOp>) -> Txn {
    let key = keys.value();
    let version = write.expected.map_or(0, revision_of);
    let mut conditions = vec![Compare::mod_revision(key.as_str(), CompareOp::Equal, version)];
    conditions.extend(no_entries(write, keys));
    Txn::new().when(conditions).and_then(changes).or_else([TxnOp::get(key, None)])
}

/// Writes a value that is not there, if the last mark is this one.
fn create(write: &Write, keys: &Keys, mark: u64, admission: &Admission) -> Result<Txn> {
    let (key, removed) = (keys.value(), keys.removed());
    let mut conditions = vec![
        Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
        // Of a key that is not there the revision is zero.
        Compare::mod_revision(removed.as_str(), CompareOp::Equal, revision_of(mark)),
        admission.holds(),
    ];
    conditions.extend(no_entries(write, keys));
    let keys_only = Some(GetOptions::new().with_keys_only());
    let look = [TxnOp::get(key, None), admission.read(), TxnOp::get(removed, keys_only)];
    Ok(Txn::new().when(conditions).and_then([put(write, keys)?]).or_else(look))
}

fn no_entries(write: &Write, keys: &Keys) -> Option<Compare> {
    let entries = keys.entries();
    // Holds for every key of the range: so there is none.
    let none = Compare::create_revision(entries.from, CompareOp::Equal, 0);
    write.if_empty.then(|| none.with_range(entries.to))
}

fn put(write: &Write, keys: &Keys) -> Result<TxnOp> {
    let data = write.data.as_deref().unwrap_or_default();
    let value = StoredValue::new(&write.queue, write.id, data).to_bytes()?;
    Ok(TxnOp::put(keys.value(), value, None))
}
