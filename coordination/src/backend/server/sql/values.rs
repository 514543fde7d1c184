//! Queues' values, each in its queue's row. A value belongs to no session, and is written by compare-and-set. A queue may also have
//! records: further texts, each with a name. Records may be written together with the value.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::entries::next_after;
use super::{Argument, Call, Dialect, Row as _, SqlStore};
use crate::backend::server::stored::{StoredValue, check_name, data_of};
use crate::backend::{Cursor, Data, Page, Values, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl<D: Dialect> Values for SqlStore<D> {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let queue = &write.queue;
        let none = || Error::new(ErrorKind::Unavailable, "write", "there is no session");
        // A value belongs to no session, but the call is sent as a call of the current session: for each session, the server knows
        // the newest connection on which a call of the session has come. If this call is given up, its connection is given up, too.
        // If the call arrives only after a call on a newer connection, the server rejects it (`stale`).
        let session = self.sessions.current().ok_or_else(none)?;
        let text = write.data.as_ref();
        let text = text.map(|data| StoredValue::by(write, data).to_bytes()).transpose()?;
        let path = self.path(queue);
        let call = Call::new("write", "write")
            .of(session)
            .bytes(path.as_str())
            .number_or_null(write.expected)
            .with(Argument::Bytes(text))
            .flag(write.if_empty)
            .number(write.id)
            .with(Argument::Records(write.beside.clone()));
        let epoch = self.epoch();
        let answer = self.connections.run(&call).await;
        let answer = answer.map_err(|error| match error.kind() {
            // The session has ended, but the caller may write the value under its next session. So the error must be one after
            // which the caller tries again; after `Lost` it would not.
            ErrorKind::Lost => Error::new(ErrorKind::Unavailable, "write", "the session is over"),
            _ => error,
        })?;
        let version = answer.number("version")?;
        if answer.is_ok() {
            self.dialect().touched(&path, epoch, None);
            return Ok(version);
        }
        // The server did not carry out this call, for instance because the value does not have the expected version. But if the
        // value has the id of this very write, an earlier call of the write was carried out, and its answer was lost.
        let Some(kept) = answer.bytes("value")? else { return Ok(None) };
        check_name(queue, &kept)?;
        let is_ours = StoredValue::read(&kept)?.id == write.id;
        Ok(version.filter(|_| is_ours))
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let call = Call::new("read", "records_of").bytes(self.path(queue));
        let call = call.with(Argument::Names(names.to_vec()));
        let answer = self.connections.run_to_end(call).await?;
        let mut found = HashMap::new();
        for row in &answer.rows {
            found.insert(row.bytes("read", "name")?, data_of(row.bytes("read", "data")?));
        }
        Ok(names.iter().map(|name| found.get(name.as_bytes()).cloned()).collect())
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let answer = self.page(kind, from).await?;
        Ok(Page { names: Self::names_in(&answer, "value")?, next: next_after(&answer)? })
    }
}
