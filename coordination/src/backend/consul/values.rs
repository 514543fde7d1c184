//! Queues' values: a key each, owned by no session, written by compare-and-set.
//!
//! The version is the key's modification index, which rises for ever, over removals too. A write that comes late
//! finds another index; only one that creates the value could find it as it expected, once more: so it asks for
//! the [admission](super::session::Admission) of a session of ours. And a removal leaves a mark, which goes with the
//! session that has left it: why, see [`unanswered`](crate::backend::server::unanswered).

use async_trait::async_trait;

use super::client::Request;
use super::entry::{check_pair, entry_of};
use super::keys::{Keys, queue_of_value};
use super::kv::{Operation, Outcome, Pair, names, read_all, read_together, transact};
use super::session::Admission;
use super::{Consul, TRIES};
use crate::backend::server::stored::{StoredValue, name_in};
use crate::backend::{Value, Values, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;

/// How many values are read in one transaction: Consul takes 64 operations, and a value may be large.
const BATCH: usize = 32;
/// The value that this key has.
pub(super) fn value_of(pair: &Pair) -> Result<Value> {
    let stored = StoredValue::read(&pair.value())?;
    Ok(Value { version: pair.modify_index, data: stored.data.into() })
}

/// What became of one try.
enum Tried {
    Done(u64),
    /// The value is another one.
    Differs,
    /// An entry came in between.
    Entered,
    /// Calls of others were in doubt meanwhile, or the session is over.
    NotAdmitted,
    /// A value was removed since, or the mark of that is gone.
    OtherMark,
}

/// What a write is made with.
struct Means {
    keys: Keys,
    admission: Admission,
    /// The index of the mark that a removal has left; zero: there is none.
    mark: u64,
    /// Whether another call of this write may have had an effect.
    is_in_doubt: bool,
}

#[async_trait]
impl Values for Consul {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let mut means = Means {
            keys: self.keys(&write.queue),
            admission: self.sessions.any_admission()?,
            mark: self.unanswered.mark(write.id),
            is_in_doubt: false,
        };
        for _ in 0..TRIES {
            let tried = match write.if_empty {
                true => self.write_if_empty(write, &mut means).await?,
                false => self.try_write(write, &mut means, None).await?,
            };
            match tried {
                Tried::Done(version) => return Ok(Some(version)),
                Tried::Differs => return self.written_before(write, &means).await,
                Tried::Entered => {}
                Tried::NotAdmitted => {
                    let learned = self.sessions.learn(&self.connections, "write", &means.admission);
                    learned.await.map_err(|error| match error.loss_reason() {
                        Some(_) => no_session(),
                        None => error,
                    })?;
                    means.admission = self.sessions.any_admission()?;
                }
                // It may be what a call before has written that was removed.
                Tried::OtherMark if means.is_in_doubt => return Ok(None),
                Tried::OtherMark => {
                    let removed = means.keys.removed();
                    let (found, _) = read_all(&self.connections, "write", &removed).await?;
                    means.mark = found.first().map_or(0, |pair| pair.modify_index);
                }
            }
        }
        let message =
            "entries or the value came and went, or other calls were in doubt, all the time";
        Err(Error::new(ErrorKind::Unavailable, "write", message))
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        let request = Request::get(format!("kv/{prefix}")).with("keys").with("consistent");
        let found = names("list", self.connections.send("list", request).await?)?;
        let queues = found.iter().filter_map(|key| queue_of_value(key, &prefix));
        let (hashed, plain): (Vec<_>, Vec<_>) = queues.partition(|queue| key::is_hashed(queue));
        let mut names: Vec<_> = plain.into_iter().filter_map(key::unescape).collect();
        for batch in hashed.chunks(BATCH) {
            let value = |queue: &&str| Keys::new(format!("{prefix}{queue}/")).value();
            let reads: Vec<_> = batch.iter().map(|queue| Operation::read(value(queue))).collect();
            // One that was removed meanwhile has none.
            let pairs = read_together(&self.connections, "list", &reads).await?;
            let values = pairs.iter().filter(|pair| queue_of_value(&pair.key, &prefix).is_some());
            names.extend(values.filter_map(|pair| name_in(&pair.value())));
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl Consul {
    async fn write_if_empty(&self, write: &Write, means: &mut Means) -> Result<Tried> {
        let closing = means.keys.closing();
        // Whoever enters from now on removes this key, and with it the condition of what follows.
        let look = [
            Operation::delete(closing.as_str()),
            Operation::lock(closing.as_str(), b"", &means.admission.id),
            Operation::read(means.keys.prefix()),
        ];
        let pairs = match transact(&self.connections, "write", &look).await? {
            Outcome::Done(pairs) => pairs,
            Outcome::Refused(_) => return Err(no_session()),
        };
        let closed = pairs.iter().find(|pair| pair.key == closing);
        let closed = closed.ok_or_else(no_session)?.modify_index;
        let tried = match pairs.iter().any(|pair| entry_of(pair, &means.keys).is_some()) {
            true => Tried::Differs,
            false => self.try_write(write, means, Some(closed)).await?,
        };
        if !matches!(tried, Tried::Done(_)) {
            let clear = Operation::delete_unchanged(closing.as_str(), closed);
            transact(&self.connections, "write", &[clear]).await?;
        }
        Ok(tried)
    }

    /// One try. `closed`: only while nobody has entered since then.
    async fn try_write(
        &self,
        write: &Write,
        means: &mut Means,
        closed: Option<u64>,
    ) -> Result<Tried> {
        let (key, closing) = (means.keys.value(), means.keys.closing());
        let (removed, admission) = (means.keys.removed(), means.admission.clone());
        let mut steps = Vec::new();
        if let Some(closed) = closed {
            steps.push(Operation::is_unchanged(closing.as_str(), closed));
            steps.push(Operation::delete(closing.as_str()));
        }
        let conditions = steps.len();
        let creates = write.expected.is_none() && write.data.is_some();
        if creates {
            steps.push(admission.holds());
            steps.push(match means.mark {
                0 => Operation::is_absent(removed.as_str()),
                mark => Operation::is_unchanged(removed.as_str(), mark),
            });
        }
        match (&write.data, write.expected) {
            (Some(data), expected) => {
                let value = StoredValue::new(&write.queue, write.id, data).to_bytes()?;
                let expected = expected.unwrap_or_default();
                steps.push(Operation::write(key.as_str(), &value, expected));
            }
            (None, Some(version)) => {
                // `delete-cas` is content where there is no key: somebody else's removal would be ours too.
                steps.push(Operation::is_unchanged(key.as_str(), version));
                steps.push(Operation::delete(key.as_str()));
                // The mark goes with our session.
                steps.push(Operation::delete(removed.as_str()));
                steps.push(Operation::lock(removed.as_str(), b"", &admission.id));
            }
            // Nothing is to become nothing.
            (None, None) => steps.push(Operation::is_absent(key.as_str())),
        }
        if creates {
            self.unanswered.sent(write.id, means.mark);
        }
        let outcome = match transact(&self.connections, "write", &steps).await {
            Err(error) if error.effect() == Effect::Unknown => return Err(error),
            outcome => outcome,
        };
        if creates && self.unanswered.answered(write.id) {
            means.is_in_doubt = true;
            // One of them may create it once more, when it was removed meanwhile.
            let (sessions, connections) = (&self.sessions, &self.connections);
            let ended = sessions.admit_anew(connections, "write", &admission, None).await;
            ended.map_err(|error| error.with_effect(Effect::Unknown))?;
            self.unanswered.forget(write.id);
        }
        match outcome? {
            Outcome::Done(pairs) => {
                let written = pairs.iter().find(|pair| pair.key == key);
                let written = written.map(|pair| pair.modify_index).or(write.expected);
                Ok(Tried::Done(written.unwrap_or_default()))
            }
            Outcome::Refused(refusal) if refusal.nth < conditions => Ok(Tried::Entered),
            Outcome::Refused(refusal) if refusal.is_of_no_session() => Ok(Tried::NotAdmitted),
            Outcome::Refused(refusal) if refusal.is_of_delay() => {
                Err(Error::new(ErrorKind::Unavailable, "write", refusal.message))
            }
            Outcome::Refused(refusal) if creates && refusal.nth == conditions => {
                Ok(Tried::NotAdmitted)
            }
            Outcome::Refused(refusal) if creates && refusal.nth == conditions + 1 => {
                Ok(Tried::OtherMark)
            }
            Outcome::Refused(_) => Ok(Tried::Differs),
        }
    }

    /// The version that this write made, if an earlier call of it did.
    async fn written_before(&self, write: &Write, means: &Means) -> Result<Option<u64>> {
        let key = means.keys.value();
        let (found, _) = read_all(&self.connections, "write", &key).await?;
        let Some(pair) = found.iter().find(|pair| pair.key == key) else { return Ok(None) };
        check_pair(&write.queue, pair)?;
        let is_ours = StoredValue::read(&pair.value())?.id == write.id;
        Ok(is_ours.then_some(pair.modify_index))
    }
}

fn no_session() -> Error {
    let message = "the session that was to write is over";
    Error::new(ErrorKind::Unavailable, "write", message).with_effect(Effect::None)
}
