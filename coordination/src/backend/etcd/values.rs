//! Queues' values: a key each, owned by no session, written by compare-and-set.
//!
//! The version is the key's modification revision, which rises for ever, over removals too. A write that comes late
//! finds another one; only one that creates the value could find it as it expected, once more: so it asks for the
//! [admission](super::admission) of a session of ours. And a removal leaves a mark, which goes with the session that has
//! left it: why, see [`unanswered`](crate::backend::server::unanswered).

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnResponse};

use super::admission::{Admission, no_session};
use super::entry::{number, revision_of};
use super::keys::{Keys, queue_of_value};
use super::session::lease_of;
use super::{Etcd, found, revision_in};
use crate::backend::server::stored::{StoredValue, check_name, name_in};
use crate::backend::{Value, Values, Write};
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

#[async_trait]
impl Values for Etcd {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let keys = self.keys(&write.queue);
        match (write.expected, &write.data) {
            (None, Some(_)) => self.create(write, &keys).await,
            (Some(version), None) => self.remove(write, &keys, version).await,
            // One that comes late finds another version. Nothing is to become nothing: that is left as it is.
            (expected, data) => {
                let key = keys.value();
                let put = data.as_ref().map(|_| put(write, &keys)).transpose()?;
                let transaction = Txn::new()
                    .when(as_expected(write, &keys, expected.unwrap_or_default()))
                    .and_then(put.into_iter().collect::<Vec<_>>())
                    .or_else([TxnOp::get(key, None)]);
                let answer = self.transact("write", transaction).await?;
                if answer.succeeded() {
                    return Ok(expected.map(|_| number(revision_in(answer.header()))));
                }
                written_before(write, &answer)
            }
        }
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
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

impl Etcd {
    /// Removes the value, and leaves a mark of that under a session of ours.
    async fn remove(&self, write: &Write, keys: &Keys, version: u64) -> Result<Option<u64>> {
        for _ in 0..TRIES {
            let admission = self.admissions.any()?;
            let key = keys.value();
            let mut conditions = as_expected(write, keys, version);
            // The session is open: there is a lease for the mark.
            conditions.push(admission.holds());
            let mark = PutOptions::new().with_lease(lease_of(admission.session));
            let changes =
                [TxnOp::delete(key.as_str(), None), TxnOp::put(keys.removed(), "", Some(mark))];
            let look = [TxnOp::get(key, None), admission.read()];
            let transaction = Txn::new().when(conditions).and_then(changes).or_else(look);
            let answer = self.transact("write", transaction).await?;
            if answer.succeeded() {
                return Ok(Some(version));
            }
            let (value, member) = (found(&answer, 0), found(&answer, 1));
            let is_admitted = member.first().is_some_and(|own| admission.is_of(own));
            let is_there = value.iter().any(|kv| number(kv.mod_revision()) == version);
            if is_admitted || !is_there {
                return written_before(write, &answer);
            }
            // Calls of others were in doubt meanwhile.
            self.admissions.learn(&admission, member.first()).map_err(|_| no_session())?;
        }
        Err(unsettled())
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
        Err(unsettled())
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
}

/// The version that this write made, if it is what was found: an earlier call of it did that.
fn written_before(write: &Write, answer: &TxnResponse) -> Result<Option<u64>> {
    let found = found(answer, 0);
    let Some(kv) = found.first() else { return Ok(None) };
    check_name(&write.queue, kv.value())?;
    let is_ours = StoredValue::read(kv.value())?.id == write.id;
    Ok(is_ours.then(|| number(kv.mod_revision())))
}

fn unsettled() -> Error {
    let message = "the value came and went, or other calls were in doubt, all the time";
    Error::new(ErrorKind::Unavailable, "write", message)
}

/// Holds while the value has this version; zero: while there is none.
fn as_expected(write: &Write, keys: &Keys, version: u64) -> Vec<Compare> {
    // Of a key that is not there the revision is zero.
    let same = Compare::mod_revision(keys.value(), CompareOp::Equal, revision_of(version));
    std::iter::once(same).chain(no_entries(write, keys)).collect()
}

/// Writes a value that is not there, if the last mark is this one.
fn create(write: &Write, keys: &Keys, mark: u64, admission: &Admission) -> Result<Txn> {
    let (key, removed) = (keys.value(), keys.removed());
    let mut conditions = as_expected(write, keys, 0);
    conditions.push(Compare::mod_revision(removed.as_str(), CompareOp::Equal, revision_of(mark)));
    conditions.push(admission.holds());
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
