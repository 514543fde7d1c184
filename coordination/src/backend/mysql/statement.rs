//! A call of one of our procedures in the database, and what it answers.
//!
//! It is one statement and one round trip. It is not prepared, so that nothing of it stays on a connection; what it is given
//! stands in it in hexadecimal digits, which mean the same whatever a server's settings are.

use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use mysql_async::Row;
use mysql_async::prelude::FromValue;

use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// A call to make, on whatever connection.
pub(super) struct Call {
    pub(super) operation: &'static str,
    /// `CALL name(`, and the arguments so far.
    text: String,
    /// Where in the text the number of the connection is to stand.
    generation: Option<usize>,
    has_arguments: bool,
}

/// The rows that a procedure answered.
pub(super) struct Answer {
    operation: &'static str,
    pub(super) rows: Vec<Row>,
}

impl Call {
    pub(super) fn new(operation: &'static str, procedure: &'static str) -> Self {
        let text = format!("CALL coordination_{procedure}(");
        Self { operation, text, generation: None, has_arguments: false }
    }

    /// Under this session, and refused if it comes on an older connection than another call of the session's.
    pub(super) fn of(self, session: SessionId) -> Self {
        self.bytes(session.to_string()).generation()
    }

    /// The number of the connection that is used.
    pub(super) fn generation(mut self) -> Self {
        self = self.argument("");
        self.generation = Some(self.text.len());
        self
    }

    pub(super) fn bytes(self, bytes: impl AsRef<[u8]>) -> Self {
        self.argument(&literal(bytes))
    }

    pub(super) fn bytes_or_null(self, bytes: Option<impl AsRef<[u8]>>) -> Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.argument("NULL"),
        }
    }

    pub(super) fn flag(self, flag: bool) -> Self {
        self.argument(if flag { "TRUE" } else { "FALSE" })
    }

    /// As the server has numbers: with a sign.
    pub(super) fn number(self, number: u64) -> Self {
        self.argument(&number.cast_signed().to_string())
    }

    pub(super) fn number_or_null(self, number: Option<u64>) -> Self {
        match number {
            Some(number) => self.number(number),
            None => self.argument("NULL"),
        }
    }

    fn argument(mut self, text: &str) -> Self {
        if std::mem::replace(&mut self.has_arguments, true) {
            self.text.push_str(", ");
        }
        self.text.push_str(text);
        self
    }

    /// The statement, on the connection of this number.
    pub(super) fn statement(&self, generation: u64) -> String {
        let mut text = self.text.clone();
        text.push(')');
        if let Some(place) = self.generation {
            text.insert_str(place, &generation.cast_signed().to_string());
        }
        text
    }
}

/// Bytes as a statement has them.
pub(super) fn literal(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    // Writing to a string does not fail.
    let _ = write!(text, "X'{}'", HEXLOWER.encode_display(bytes));
    text
}

impl Answer {
    /// What was answered, without a look at its status.
    pub(super) fn of_query(operation: &'static str, rows: Vec<Row>) -> Self {
        Self { operation, rows }
    }

    /// What it says where that means the same in all procedures.
    pub(super) fn checked(operation: &'static str, rows: Vec<Row>) -> Result<Self> {
        let answer = Self { operation, rows };
        let unavailable = |message| Err(Error::new(ErrorKind::Unavailable, operation, message));
        match answer.status().as_str() {
            "lost" => Err(Error::lost(operation, LossReason::ExpiredByServer)),
            "stale" => unavailable("the connection was given up"),
            "busy" => unavailable("another session with the member id is being ended"),
            "fenced" => unavailable("a transaction of the holder's has the lock's row"),
            _ => Ok(answer),
        }
    }

    /// Its status, if it has one.
    pub(super) fn status(&self) -> String {
        let status = self.rows.first().and_then(|row| row.get_opt::<String, _>("status"));
        status.and_then(std::result::Result::ok).unwrap_or_default()
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status() == "ok"
    }

    /// A column of the first row.
    pub(super) fn column<T: FromValue>(&self, name: &str) -> Result<T> {
        let row = self.rows.first().ok_or_else(|| corrupt(self.operation))?;
        value_in(self.operation, row, name)
    }

    /// A number of the first row, if it has that.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        let row = self.rows.first().ok_or_else(|| corrupt(self.operation))?;
        number_in(self.operation, row, name)
    }
}

pub(super) fn value_in<T: FromValue>(operation: &'static str, row: &Row, name: &str) -> Result<T> {
    let value = row.get_opt(name).and_then(std::result::Result::ok);
    value.ok_or_else(|| corrupt(operation))
}

pub(super) fn number_in(operation: &'static str, row: &Row, name: &str) -> Result<Option<u64>> {
    let number = value_in::<Option<i64>>(operation, row, name)?;
    number.map(|number| u64::try_from(number).map_err(|_| corrupt(operation))).transpose()
}

pub(super) fn corrupt(operation: &'static str) -> Error {
    let message = "the server's answer is none of this library's procedures";
    Error::new(ErrorKind::Corrupt, operation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_the_number_of_its_connection() {
        let session = SessionId::random();
        let call = Call::new("enter", "enter").of(session).flag(true).number(u64::MAX);
        let id = literal(session.to_string());
        assert_eq!(call.statement(7), format!("CALL coordination_enter({id}, 7, TRUE, -1)"));
        assert_eq!(Call::new("list", "x").statement(7), "CALL coordination_x()");
    }

    #[test]
    fn nothing_that_is_given_is_read_as_a_statement() {
        let call = Call::new("list", "x").bytes("a'\\\0\n é").bytes_or_null(None::<&str>);
        assert_eq!(call.statement(1), "CALL coordination_x(X'61275c000a20c3a9', NULL)");
        assert_eq!(literal(""), "X''");
    }
}
