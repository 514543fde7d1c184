//! Queues' values: a key each, owned by no session, written by compare-and-set.
//!
//! The version is the key's modification revision, which rises for ever, over removals too. A write that comes late
//! finds another one; only one that creates the value could find it as it expected, once more: so it asks for the
//! [admission](super::admission) of a session of ours.

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnResponse};

use super::admission::{Admission, no_session};
use super::entry::{number, revision_of};
use super::keys::{Keys, queue_of_value};
use super::{Etcd, found, revision_in};
use crate::backend::stored::{StoredValue, check_name, name_in};
use crate::backend::{Value, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;

/// How many values are read in one transaction: etcd takes 128, and a value may be large.
const BATCH: usize = 32;

/// The value that this key has.
pub(super) fn value_of(kv: &KeyValue) -> Result<Value> {
    let stored = StoredValue::read(kv.value())?;
    Ok(Value { version: number(kv.mod_revision()), data: stored.data.into() })
}

impl Etcd {
    pub(super) async fn write_value(&self, write: &Write) -> Result<Option<u64>> {
        // Again where calls of others were in doubt meanwhile, which has ended the admission.
        for _ in 0..2 {
            let admission = match write.expected {
                None => Some(self.admissions.any()?),
                // One that comes late finds another version.
                Some(_) => None,
            };
            let transaction = transaction(write, &self.keys(&write.queue), admission.as_ref())?;
            let answer = match &admission {
                None => self.transact("write", transaction).await?,
                Some(admission) => self.create(write, admission, transaction).await?,
            };
            if answer.succeeded() {
                let written = number(revision_in(answer.header()));
                return Ok(if write.data.is_some() { Some(written) } else { write.expected });
            }
            if let Some(kv) = found(&answer, 0).first() {
                check_name(&write.queue, kv.value())?;
                let is_ours = StoredValue::read(kv.value())?.id == write.id;
                return Ok(is_ours.then(|| number(kv.mod_revision())));
            }
            let Some(admission) = admission else { return Ok(None) };
            let read = found(&answer, 1);
            if read.first().is_some_and(|own| admission.is_of(own)) {
                // It has entries.
                return Ok(None);
            }
            self.admissions.learn(&admission, read.first()).map_err(|_| no_session())?;
        }
        let message = "other calls were in doubt meanwhile";
        Err(Error::new(ErrorKind::Unavailable, "write", message))
    }

    /// Writes a value that is not there yet. If a call that was given up may still do so too, once this one is removed
    /// perhaps, that is prevented.
    async fn create(
        &self,
        write: &Write,
        admission: &Admission,
        transaction: Txn,
    ) -> Result<TxnResponse> {
        self.unanswered.sent(write.id);
        let outcome = match self.transact("write", transaction).await {
            Err(error) if error.effect() == Effect::Unknown => return Err(error),
            outcome => outcome,
        };
        if self.unanswered.answered(write.id) {
            let connections = &self.connections;
            let ended =
                self.admissions.admit_anew(connections, "write", admission.session, None).await;
            match ended {
                // With the session its admissions have ended.
                Err(error) if error.loss_reason().is_none() => {
                    return Err(error.with_effect(Effect::Unknown));
                }
                _ => self.unanswered.forget(write.id),
            }
        }
        outcome
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

fn transaction(write: &Write, keys: &Keys, admission: Option<&Admission>) -> Result<Txn> {
    let key = keys.value();
    let mut conditions = vec![match write.expected {
        Some(version) => {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, revision_of(version))
        }
        None => Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
    }];
    if write.if_empty {
        let entries = keys.entries();
        // Holds for every key of the range: so there is none.
        let none = Compare::create_revision(entries.from, CompareOp::Equal, 0);
        conditions.push(none.with_range(entries.to));
    }
    let change = match &write.data {
        Some(data) => TxnOp::put(
            key.as_str(),
            StoredValue::new(&write.queue, write.id, data).to_bytes()?,
            None,
        ),
        None => TxnOp::delete(key.as_str(), None),
    };
    conditions.extend(admission.map(Admission::holds));
    let look = [TxnOp::get(key, None)].into_iter().chain(admission.map(Admission::read));
    Ok(Txn::new().when(conditions).and_then([change]).or_else(look.collect::<Vec<_>>()))
}
