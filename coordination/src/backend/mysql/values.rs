//! Queues' values: in the queue's row, owned by no session, written by compare-and-set, with records beside them.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::Mysql;
use super::statement::{Answer, Call, value_in};
use crate::backend::server::stored::{StoredValue, check_name, data_of, queue_name};
use crate::backend::{Cursor, Data, PAGE, Page, Values, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Values for Mysql {
    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let queue = &write.queue;
        let none = || Error::new(ErrorKind::Unavailable, "write", "there is no session");
        // Under a session, so that a call that was given up is known by its connection when it comes.
        let session = self.sessions.current().ok_or_else(none)?;
        let text = write.data.as_ref();
        let text = text.map(|data| StoredValue::by(write, data).to_bytes()).transpose()?;
        let names: Vec<_> = write.beside.iter().map(|beside| &*beside.name).collect();
        let datas: Vec<_> = write.beside.iter().map(|beside| beside.data.as_deref()).collect();
        let length =
            |data: &Option<&str>| data.map_or("-".to_owned(), |data| data.len().to_string());
        let lengths: Vec<_> = datas.iter().map(length).collect();
        let path = self.path(queue);
        let call = Call::new("write", "write")
            .of(session)
            .bytes(&path)
            .number_or_null(write.expected)
            .bytes_or_null(text)
            .flag(write.if_empty)
            .number(write.id)
            .bytes(names.join(","))
            .bytes(lengths.join(","))
            .bytes(datas.into_iter().flatten().collect::<String>())
            .number(write.beside.len() as u64);
        let answer = self.connections.run(&call).await;
        let answer = answer.map_err(|error| match error.kind() {
            // A value belongs to no session: the next one may write it.
            ErrorKind::Lost => Error::new(ErrorKind::Unavailable, "write", "the session is over"),
            _ => error,
        })?;
        let version = answer.number("version")?;
        if answer.is_ok() {
            self.polls.touched(&path, None);
            return Ok(version);
        }
        // An earlier call got through, and its answer was lost.
        let Some(kept) = answer.column::<Option<Vec<u8>>>("value")? else { return Ok(None) };
        check_name(queue, &kept)?;
        let is_ours = StoredValue::read(&kept)?.id == write.id;
        Ok(version.filter(|_| is_ours))
    }

    async fn records(&self, queue: &QueueKey, names: &[Arc<str>]) -> Result<Vec<Option<Data>>> {
        let call = Call::new("read", "records_of").bytes(self.path(queue)).bytes(names.join(","));
        let answer = self.connections.run(&call).await?;
        let mut found = HashMap::new();
        for row in &answer.rows {
            let name: Vec<u8> = value_in("read", row, "name")?;
            found.insert(name, data_of(value_in("read", row, "data")?)?);
        }
        Ok(names.iter().map(|name| found.get(name.as_bytes()).cloned()).collect())
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

impl Mysql {
    /// Queues of this kind, used or not, in the order of their paths.
    pub(super) async fn page(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Answer> {
        let (after, upto) = after(&format!("{}/{kind}/", self.namespace), from);
        let call = Call::new("list", "list").bytes(after).bytes(upto).number(PAGE as u64);
        self.connections.run(&call).await
    }
}

/// The paths that begin so are those between these two, after what the cursor names.
pub(super) fn after(prefix: &str, from: Option<&Cursor>) -> (Vec<u8>, Vec<u8>) {
    let after = Cursor::place(from).max(prefix.as_bytes()).to_vec();
    // No path has this byte.
    let upto = [prefix.as_bytes(), &[0xff]].concat();
    (after, upto)
}

/// Where the list goes on after these; a page that is not full is the last one.
pub(super) fn next_after(answer: &Answer) -> Result<Option<Cursor>> {
    let last = answer.rows.last().filter(|_| answer.rows.len() >= PAGE);
    last.map(|row| Ok(Cursor::to(&value_in::<Vec<u8>>("list", row, "path")?))).transpose()
}
