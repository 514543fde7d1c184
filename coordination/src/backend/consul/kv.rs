//! Keys as Consul has them, and transactions over them.
//!
//! A transaction is one entry of Consul's log: it takes effect as a whole or not at all, and its reads see what it wrote. If the
//! condition of an operation does not hold, the answer has status 409 and the index of that operation.

use std::borrow::Cow;
use std::sync::Arc;

use data_encoding::BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::{Agents, Connections};
use super::error::{from_status, garbled};
use super::request::{Answer, Request, parsed};
use crate::backend::server::connections::Ready;
use crate::error::Result;

/// How many keys are read in one transaction: Consul allows 64 operations.
pub(super) const BATCH: usize = 60;

/// What Consul's message contains if the token lacks a right.
const FORBIDDEN: &str = "Permission denied";

const READ: &str = "get-tree";

/// A key, with its value and its indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Pair {
    pub(super) key: String,
    /// The value in base64. It is decoded on demand, because most readers of a queue need no values.
    #[serde(default)]
    value: Option<String>,
    /// The session that has locked the key.
    #[serde(default)]
    pub(super) session: Option<String>,
    /// How often the key was locked.
    #[serde(default)]
    pub(super) lock_index: u64,
    #[serde(default)]
    pub(super) create_index: u64,
    #[serde(default)]
    pub(super) modify_index: u64,
}

impl Pair {
    /// The value; empty if it is not base64, which Consul never answers.
    pub(super) fn value(&self) -> Vec<u8> {
        let text = self.value.as_deref().unwrap_or_default();
        BASE64.decode(text.as_bytes()).unwrap_or_default()
    }

    /// Whether a session has locked the key.
    pub(super) fn is_locked(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_empty())
    }

    /// Whether the session that had locked the key is over, and Consul has kept the key: see
    /// [`lock_delayed`](super::lock_delayed).
    pub(super) fn is_left(&self) -> bool {
        !self.is_locked() && self.lock_index > 0
    }

    pub(super) fn is_of(&self, session: &str) -> bool {
        self.session.as_deref() == Some(session)
    }
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Operation<'a> {
    verb: &'static str,
    key: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Cow<'a, str>>,
}

impl<'a> Operation<'a> {
    fn new(verb: &'static str, key: impl Into<Cow<'a, str>>) -> Self {
        Self { verb, key: key.into(), value: None, index: None, flags: None, session: None }
    }

    pub(super) fn is_absent(key: impl Into<Cow<'a, str>>) -> Self {
        Self::new("check-not-exists", key)
    }

    pub(super) fn is_unchanged(key: impl Into<Cow<'a, str>>, modified: u64) -> Self {
        Self { index: Some(modified), ..Self::new("check-index", key) }
    }

    /// Writes a key and locks it for a session; refused if another session has locked it.
    pub(super) fn lock(
        key: impl Into<Cow<'a, str>>,
        value: &[u8],
        session: impl Into<Cow<'a, str>>,
    ) -> Self {
        let value = Some(BASE64.encode(value));
        Self { value, session: Some(session.into()), ..Self::new("lock", key) }
    }

    /// The same operation, but it also writes this number into the key's flags. If value, flags and session stayed as they are, the
    /// write would change nothing, not even the key's index.
    pub(super) fn numbered(self, flags: u64) -> Self {
        Self { flags: Some(flags), ..self }
    }

    pub(super) fn set(key: impl Into<Cow<'a, str>>, value: &[u8]) -> Self {
        Self { value: Some(BASE64.encode(value)), ..Self::new("set", key) }
    }

    /// Deletes a key if it is there.
    pub(super) fn delete(key: impl Into<Cow<'a, str>>) -> Self {
        Self::new("delete", key)
    }

    /// Reads all keys that begin with `prefix`.
    pub(super) fn read(prefix: impl Into<Cow<'a, str>>) -> Self {
        Self::new(READ, prefix)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The pairs that the operations returned, in order. The pair of a write has no value.
    Done(Vec<Pair>),
    /// Nothing was done.
    Refused(Refusal),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The index of the operation that was refused.
    pub(super) nth: usize,
    pub(super) message: String,
}

impl Refusal {
    /// Whether the operation was refused because the session is over.
    pub(super) fn is_of_no_session(&self) -> bool {
        self.message.starts_with("invalid session")
    }

    /// Whether the operation was refused because the lock-delay of a session that is over still protects the key.
    pub(super) fn is_of_delay(&self) -> bool {
        self.message.contains("due to lock delay")
    }

    /// Whether the operation was refused because another session has locked the key.
    pub(super) fn is_of_another(&self) -> bool {
        self.message.contains("lock is already held")
    }
}

#[derive(Serialize)]
#[serde(rename_all = "UPPERCASE")]
struct Step<'a> {
    kv: &'a Operation<'a>,
}

#[derive(Deserialize)]
struct Result_ {
    #[serde(rename = "KV")]
    kv: Option<Pair>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    results: Option<Vec<Result_>>,
    errors: Option<Vec<Problem>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Problem {
    op_index: usize,
    what: String,
}

/// The request that makes a transaction.
pub(super) fn transaction(operations: &[Operation<'_>]) -> Result<Request> {
    let steps: Vec<_> = operations.iter().map(|kv| Step { kv }).collect();
    let body = serde_json::to_vec(&steps)
        .map_err(|error| garbled("enter", "cannot write a request").with_source(error))?;
    let is_read = operations.iter().all(|operation| operation.verb == READ);
    Ok(Request { is_read, ..Request::put("txn", body) })
}

pub(super) async fn transact(
    connections: &Arc<Connections>,
    operation: &'static str,
    operations: &[Operation<'_>],
) -> Result<Outcome> {
    transact_on(connections.ready(operation).await?, operations).await
}

/// Makes a transaction on the connection that is kept open for heartbeats ([`Lane::Kept`](super::pool::Lane::Kept)), without
/// waiting for a slot among the calls in flight.
pub(super) async fn transact_urgently(
    connections: &Arc<Connections>,
    operation: &'static str,
    operations: &[Operation<'_>],
) -> Result<Outcome> {
    let ready = connections.urgent(operation).await?;
    outcome(operation, ready.send_urgently(transaction(operations)?).await?)
}

/// Makes a transaction in the slot `ready`, which the caller has got before: only a limited number of calls may be in flight.
pub(super) async fn transact_on(
    ready: Ready<'_, Agents>,
    operations: &[Operation<'_>],
) -> Result<Outcome> {
    let operation = ready.operation;
    outcome(operation, ready.send(transaction(operations)?).await?)
}

pub(super) fn outcome(operation: &'static str, answer: Answer) -> Result<Outcome> {
    if !matches!(answer.status, 200 | 409) {
        return Err(answer.refusal(operation));
    }
    let Results { results, errors } = parsed(operation, &answer.body)?;
    if let Some(problem) = errors.and_then(|errors| errors.into_iter().next()) {
        if problem.what.contains(FORBIDDEN) {
            // Consul reports a missing right in the same way as a condition that does not hold.
            return Err(from_status(operation, 403, &problem.what));
        }
        return Ok(Outcome::Refused(Refusal { nth: problem.op_index, message: problem.what }));
    }
    if answer.status != 200 {
        return Err(answer.refusal(operation));
    }
    let results = results.unwrap_or_default();
    Ok(Outcome::Done(results.into_iter().filter_map(|result| result.kv).collect()))
}

/// The message about the first operation for which the token lacks a right; `None`: no right is missing.
pub(super) fn forbidden(answer: &Answer) -> Option<String> {
    let Results { errors, .. } = serde_json::from_slice(&answer.body).ok()?;
    let mut problems = errors.unwrap_or_default().into_iter().map(|problem| problem.what);
    problems.find(|what| what.contains(FORBIDDEN))
}

/// Reads all keys that begin with `prefix`, as the leader has them. Also returns the answer's index, with which a blocking query
/// for later changes can begin.
pub(super) async fn read_all(
    connections: &Arc<Connections>,
    operation: &'static str,
    prefix: &str,
) -> Result<(Vec<Pair>, u64)> {
    let request = Request::get(format!("kv/{}", super::keys::path(prefix)));
    let request = request.with("recurse").with("consistent");
    let answer = connections.send(operation, request).await?;
    let index = answer.index;
    Ok((listed(operation, answer)?, index))
}

/// Deletes a key if it is there. This is faster than a transaction.
pub(super) async fn delete(
    connections: &Arc<Connections>,
    operation: &'static str,
    key: &str,
) -> Result<()> {
    let request = Request::delete(format!("kv/{}", super::keys::path(key)));
    let answer = connections.send(operation, request).await?;
    match parsed::<bool>(operation, &answer.done(operation)?)? {
        true => Ok(()),
        false => Err(garbled(operation, "the key was not deleted")),
    }
}

/// Reads several keys, as the leader has them at one moment.
pub(super) async fn read_together(
    connections: &Arc<Connections>,
    operation: &'static str,
    reads: &[Operation<'_>],
) -> Result<Vec<Pair>> {
    read_together_on(connections.ready(operation).await?, reads).await
}

/// Like [`read_together`], in the slot `ready`, which the caller has got before.
pub(super) async fn read_together_on(
    ready: Ready<'_, Agents>,
    reads: &[Operation<'_>],
) -> Result<Vec<Pair>> {
    let (operation, request) = (ready.operation, transaction(reads)?.with("consistent"));
    match outcome(operation, ready.send(request).await?)? {
        Outcome::Done(pairs) => Ok(pairs),
        Outcome::Refused(refusal) => Err(garbled(operation, refusal.message)),
    }
}

/// The keys, or their names, in an answer. Status 404 means that there is no such key: the list is empty.
pub(super) fn listed<T: DeserializeOwned>(
    operation: &'static str,
    answer: Answer,
) -> Result<Vec<T>> {
    match answer.status {
        404 if answer.body.is_empty() && answer.index > 0 => Ok(Vec::new()),
        _ => parsed(operation, &answer.done(operation)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, index: 0, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn a_transaction_is_written_as_consul_reads_it() -> Result<()> {
        let request = transaction(&[
            Operation::lock("a", b"hi", "s").numbered(2),
            Operation::set("b", b""),
            Operation::read("c/"),
        ])?;
        let expected = concat!(
            r#"[{"KV":{"Verb":"lock","Key":"a","Value":"aGk=","Flags":2,"Session":"s"}},"#,
            r#"{"KV":{"Verb":"set","Key":"b","Value":""}},"#,
            r#"{"KV":{"Verb":"get-tree","Key":"c/"}}]"#
        );
        assert_eq!(String::from_utf8_lossy(&request.body), expected);
        Ok(())
    }

    #[test]
    fn what_consul_answers_is_read() -> Result<()> {
        let done = r#"{"Results":[{"KV":{"LockIndex":1,"Key":"ns/l/a/1","Flags":0,"Value":"aGk=",
            "Session":"7c","CreateIndex":9,"ModifyIndex":10}}],"Errors":null}"#;
        let Outcome::Done(pairs) = outcome("enter", answer(200, done))? else {
            panic!("it was done");
        };
        assert_eq!((pairs[0].value(), pairs[0].create_index), (b"hi".to_vec(), 9));
        assert!(pairs[0].is_of("7c") && pairs[0].is_locked() && !pairs[0].is_of("8c"));
        let forbidden = r#"{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"}]}"#;
        let error = outcome("enter", answer(409, forbidden)).expect_err("it is forbidden");
        assert_eq!(error.kind(), ErrorKind::Permission);
        let refused = r#"{"Results":null,"Errors":[{"OpIndex":1,"What":"invalid session \"x\""}]}"#;
        let Outcome::Refused(refusal) = outcome("enter", answer(409, refused))? else {
            panic!("it was refused");
        };
        assert!(refusal.nth == 1 && refusal.is_of_no_session());
        assert_eq!(pairs_of(404, 7, "")?, []);
        for (status, index, body) in [(404, 7, "page not found"), (404, 0, ""), (200, 7, "{")] {
            assert!(pairs_of(status, index, body).is_err(), "{status} {body}");
        }
        Ok(())
    }

    fn pairs_of(status: u16, index: u64, body: &str) -> Result<Vec<Pair>> {
        listed("list", Answer { index, ..answer(status, body) })
    }
}
