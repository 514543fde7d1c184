//! A call of one of our functions in the database, and what it answers.
//!
//! It is one statement, which is a transaction by itself, and is not prepared under a name: so it is one round trip also where
//! a pooler gives each transaction another connection.

use std::fmt::Write as _;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::config::Schema;
use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, LossReason, Result};

/// A call to make, on whatever connection.
pub(super) struct Call {
    pub(super) operation: &'static str,
    function: &'static str,
    arguments: Vec<Argument>,
}

/// What a function is given.
pub(super) enum Argument {
    Bytes(Option<Vec<u8>>),
    Text(String),
    Number(Option<i64>),
    Flag(bool),
    List(Vec<Option<Vec<u8>>>),
    /// The number of the connection that is used.
    Generation,
}

/// The rows that a function answered.
pub(super) struct Answer {
    operation: &'static str,
    pub(super) rows: Vec<Row>,
}

impl Call {
    pub(super) fn new(operation: &'static str, function: &'static str) -> Self {
        Self { operation, function, arguments: Vec::new() }
    }

    /// Under this session, and refused if it comes on an older connection than another call of the session's.
    pub(super) fn of(self, session: SessionId) -> Self {
        self.bytes(session.to_string()).with(Argument::Generation)
    }

    pub(super) fn bytes(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.with(Argument::Bytes(Some(bytes.into())))
    }

    pub(super) fn flag(self, flag: bool) -> Self {
        self.with(Argument::Flag(flag))
    }

    pub(super) fn number(self, number: u64) -> Self {
        self.with(Argument::Number(Some(number.cast_signed())))
    }

    pub(super) fn with(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    /// The statement, where our functions are in this schema.
    pub(super) fn statement(&self, schema: &Schema) -> String {
        let mut text = format!("SELECT * FROM {schema}.{}(", self.function);
        for place in 1..=self.arguments.len() {
            let before = if place == 1 { "$" } else { ", $" };
            // Writing to a string does not fail.
            let _ = write!(text, "{before}{place}");
        }
        text.push(')');
        text
    }

    /// The arguments, on the connection of this number.
    pub(super) fn arguments<'a>(
        &'a self,
        generation: &'a i64,
    ) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
        let typed = |argument: &'a Argument| -> (&'a (dyn ToSql + Sync), Type) {
            match argument {
                Argument::Bytes(bytes) => (bytes, Type::BYTEA),
                Argument::Text(text) => (text, Type::TEXT),
                Argument::Number(number) => (number, Type::INT8),
                Argument::Flag(flag) => (flag, Type::BOOL),
                Argument::List(list) => (list, Type::BYTEA_ARRAY),
                Argument::Generation => (generation, Type::INT8),
            }
        };
        self.arguments.iter().map(typed).collect()
    }
}

impl Answer {
    /// What it says where that means the same in all functions.
    pub(super) fn checked(operation: &'static str, rows: Vec<Row>) -> Result<Self> {
        let answer = Self { operation, rows };
        let unavailable = |message| Err(Error::new(ErrorKind::Unavailable, operation, message));
        match answer.status() {
            "lost" => Err(Error::lost(operation, LossReason::ExpiredByServer)),
            "stale" => unavailable("the connection was given up"),
            "busy" => unavailable("another session with the member id is being ended"),
            "fenced" => unavailable("a transaction of the holder's has the lock's row"),
            _ => Ok(answer),
        }
    }

    /// Its status, if it has one.
    pub(super) fn status(&self) -> &str {
        let status = self.rows.first().and_then(|row| row.try_get("status").ok());
        status.unwrap_or_default()
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status() == "ok"
    }

    /// A column of the first row.
    pub(super) fn column<'a, T: FromSql<'a>>(&'a self, name: &str) -> Result<T> {
        let row = self.rows.first().ok_or_else(|| corrupt(self.operation))?;
        value_in(self.operation, row, name)
    }

    /// A number of the first row, if it has that.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        self.column::<Option<i64>>(name)?.map(|number| natural(self.operation, number)).transpose()
    }
}

pub(super) fn value_in<'a, T: FromSql<'a>>(
    operation: &'static str,
    row: &'a Row,
    name: &str,
) -> Result<T> {
    row.try_get(name).map_err(|error| corrupt(operation).with_source(error))
}

pub(super) fn natural(operation: &'static str, number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| corrupt(operation))
}

pub(super) fn corrupt(operation: &'static str) -> Error {
    let message = "the server's answer is none of this library's functions";
    Error::new(ErrorKind::Corrupt, operation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_place_for_each_argument() {
        let session = SessionId::random();
        let call = Call::new("enter", "enter").of(session).flag(true).number(u64::MAX);
        let schema = Schema::of_tests("user");
        assert_eq!(call.statement(&schema), "SELECT * FROM \"user\".enter($1, $2, $3, $4)");
        assert_eq!(call.arguments(&7).len(), 4);
        assert_eq!(Call::new("list", "x").statement(&schema), "SELECT * FROM \"user\".x()");
    }
}
