//! Queues' values: in the queue's row, owned by no session, written by compare-and-set, with records beside them.

use std::sync::Arc;

use async_trait::async_trait;

use super::Postgres;
use super::statement::{Answer, Argument, Call, value_in};
use crate::backend::server::stored::{StoredValue, check_name, data_of, queue_name};
use crate::backend::{Cursor, Data, PAGE, Page, Values, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Values for Postgres {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let queue = &write.queue;
        let none = || Error::new(ErrorKind::Unavailable, "write", "there is no session");
        // Under a session, so that a call that was given up is known by its connection when it comes.
        let session = self.sessions.current().ok_or_else(none)?;
        let text = write.data.as_ref();
        let text = text.map(|data| StoredValue::by(write, data).to_bytes()).transpose()?;
        let names = write.beside.iter().map(|beside| Some(beside.name.as_bytes().into()));
        let data = |data: &Data| data.as_bytes().into();
        let datas = write.beside.iter().map(|beside| beside.data.as_ref().map(data));
        let call = Call::new("write", "write")
            .of(session)
            .bytes(self.path(queue))
            .with(Argument::Number(write.expected.map(u64::cast_signed)))
            .with(Argument::Bytes(text))
            .flag(write.if_empty)
            .number(write.id)
            .with(Argument::List(names.collect()))
            .with(Argument::List(datas.collect()));
        let answer = self.connections.run(&call).await;
        let answer = answer.map_err(|error| match error.kind() {
            // A value belongs to no session: the next one may write it.
            ErrorKind::Lost => Error::new(ErrorKind::Unavailable, "write", "the session is over"),
            _ => error,
        })?;
        let version = answer.number("version")?;
        if answer.is_ok() {
            return Ok(version);
        }
        // An earlier call got through, and its answer was lost.
        let Some(kept) = answer.column::<Option<Vec<u8>>>("value")? else { return Ok(None) };
        check_name(queue, &kept)?;
        let is_ours = StoredValue::read(&kept)?.id == write.id;
        Ok(version.filter(|_| is_ours))
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let wanted = names.iter().map(|name| Some(name.as_bytes().into())).collect();
        let call =
            Call::new("read", "records").bytes(self.path(queue)).with(Argument::List(wanted));
        let answer = self.connections.run(&call).await?;
        let record =
            |row| value_in::<Option<Vec<u8>>>("read", row, "data")?.map(data_of).transpose();
        answer.rows.iter().map(record).collect()
    }

    async fn names(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let answer = self.page(kind, from).await?;
        let mut names = Vec::new();
        for row in &answer.rows {
            let path: Vec<u8> = value_in("list", row, "path")?;
            let value: Option<Vec<u8>> = value_in("list", row, "value")?;
            names.extend(value.and_then(|value| queue_name(&self.segment(&path), &value)));
        }
        Ok(Page { names, next: next_after(&answer)? })
    }
}

impl Postgres {
    /// Queues of this kind, used or not, in the order of their paths.
    pub(super) async fn page(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Answer> {
        let call = Call::new("list", "list")
            .bytes(format!("{}/{kind}/", self.namespace))
            .bytes(Cursor::place(from))
            .number(PAGE as u64);
        self.connections.run(&call).await
    }
}

/// Where the list goes on after these; a page that is not full is the last one.
pub(super) fn next_after(answer: &Answer) -> Result<Option<Cursor>> {
    let last = answer.rows.last().filter(|_| answer.rows.len() >= PAGE);
    last.map(|row| Ok(Cursor::to(&value_in::<Vec<u8>>("list", row, "path")?))).transpose()
}
