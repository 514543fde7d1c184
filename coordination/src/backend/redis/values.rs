//! The trait `Values` for Redis. The values of all queues of a kind are in one hash at the server, by the queues' names. A value
//! belongs to no session, and is written by compare-and-set of its version.
//!
//! The text that the hash has for a value consists of the version, a blank, and the value's own text in JSON.

use std::sync::Arc;

use async_trait::async_trait;

use super::Redis;
use super::script::{Answer, Call, Script, corrupt, queue_path};
use crate::backend::server::stored::{StoredValue, check_name, data_of, name_in};
use crate::backend::{Beside, Cursor, Data, Page, Values, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, QueueKey};

/// Splits what the hash has for a value into the version and the value's own text; `None`: it does not have this form.
pub(super) fn parts(kept: &[u8]) -> Option<(u64, &[u8])> {
    let blank = kept.iter().position(|byte| *byte == b' ')?;
    let (version, text) = kept.split_at_checked(blank)?;
    Some((str::from_utf8(version).ok()?.parse().ok()?, text.get(1..)?))
}

/// Reads from an answer the cursor with which the next page of a list is requested. `None`: there is no further page, for which the
/// server answers the cursor 0.
pub(super) fn next_in(answer: &mut Answer) -> Result<Option<Cursor>> {
    let next = answer.text()?;
    Ok((next != "0").then(|| Cursor::to(next.as_bytes())))
}

/// Reads a value and its version from an answer; `None`: the queue has no value. Fails if the value belongs to another queue: long
/// names are hashed, and two names may have the same hash.
pub(super) fn value_of(
    queue: &QueueKey,
    answer: &mut Answer,
) -> Result<Option<(u64, StoredValue)>> {
    let Some(kept) = answer.bytes()? else { return Ok(None) };
    let (version, text) = parts(&kept).ok_or_else(corrupt)?;
    check_name(queue, text)?;
    Ok(Some((version, StoredValue::read(text)?)))
}

#[async_trait]
impl Values for Redis {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let queue = &write.queue;
        let none = || Error::new(ErrorKind::Unavailable, "write", "there is no session");
        // Although a value belongs to no session, the call is made in the name of the current session, because the server notes for
        // each session the newest connection. So if this call is given up, and arrives after a call of the session on a newer
        // connection, the server rejects it (`stale`).
        let session = self.sessions.current().ok_or_else(none)?;
        let text = match &write.data {
            Some(data) => StoredValue::by(write, data).to_bytes()?,
            None => Vec::new(),
        };
        let call = Call::new("write", Script::Write)
            .of(session)
            .with(queue_path(queue))
            .with(queue.kind())
            .with(queue.encoded())
            .with(write.expected.map(|version| version.to_string()).unwrap_or_default())
            .with(text)
            .with(if write.if_empty { "1" } else { "" })
            .with_number(write.id)
            .with(if write.needs_room { "1" } else { "" })
            .only_at(write.seen);
        let beside = |call: Call, beside: &Beside| {
            call.with(&*beside.name).with(beside.data.as_deref().unwrap_or_default())
        };
        let call = write.beside.iter().fold(call, beside);
        let answer = self.connections.run(&call).await;
        let mut answer = answer.map_err(|error| match error.kind() {
            // The error `Lost` would tell the caller to stop. But a value belongs to no session, so the caller may try again under
            // its next session; `Unavailable` says that.
            ErrorKind::Lost => Error::new(ErrorKind::Unavailable, "write", "the session is over"),
            _ => error,
        })?;
        if answer.is_ok() {
            return answer.natural().map(Some);
        }
        let kept = value_of(queue, &mut answer)?;
        // The value does not have the expected version. If the value has the id of this write, the server has carried out this
        // write before, and the answer was lost: then the write has succeeded.
        Ok(kept.filter(|(_, stored)| stored.id == write.id).map(|(version, _)| version))
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let call = Call::new("read", Script::Records).with(queue_path(queue));
        let call = names.iter().fold(call, |call, name| call.with(&**name));
        let mut answer = self.connections.run(&call).await?;
        let mut next = |_| answer.bytes().map(|bytes| bytes.map(data_of));
        names.iter().map(&mut next).collect()
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let call = Call::new("list", Script::Names).with(kind).with(Cursor::place(from));
        let mut answer = self.connections.run(&call).await?;
        let next = next_in(&mut answer)?;
        let mut names = Vec::new();
        while !answer.is_at_end() {
            let name = answer.text()?;
            let kept = answer.bytes()?.unwrap_or_default();
            names.extend(match key::is_hashed(&name) {
                true => parts(&kept).and_then(|(_, text)| name_in(text)),
                false => key::unescape(&name),
            });
        }
        Ok(Page { names, next })
    }
}
