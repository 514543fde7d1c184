//! A call of one of our functions or procedures in the database: which one, and what it is given. How that is written down is
//! the dialect's.

use std::sync::Arc;

use crate::backend::{Beside, SessionId};

/// A call to make, on whatever connection.
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) function: &'static str,
    pub(crate) arguments: Vec<Argument>,
}

/// What a function is given; a dialect may make several arguments of one, or none.
pub(crate) enum Argument {
    Bytes(Option<Vec<u8>>),
    /// As the server has numbers: with a sign.
    Number(Option<i64>),
    Flag(bool),
    /// The number of the connection that is used.
    Generation,
    /// Where our process is told of what concerns it, if the server tells.
    Channel,
    /// The ids of entries, which are all of the same length.
    Ids(Vec<Arc<str>>),
    /// The names of records.
    Names(Vec<Arc<str>>),
    Records(Vec<Beside>),
}

impl Call {
    pub(crate) fn new(operation: &'static str, function: &'static str) -> Self {
        Self { operation, function, arguments: Vec::new() }
    }

    /// Under this session, and refused if it comes on an older connection than another call of the session's.
    pub(crate) fn of(self, session: SessionId) -> Self {
        self.bytes(session.to_string()).with(Argument::Generation)
    }

    pub(crate) fn bytes(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.with(Argument::Bytes(Some(bytes.into())))
    }

    pub(crate) fn flag(self, flag: bool) -> Self {
        self.with(Argument::Flag(flag))
    }

    pub(crate) fn number(self, number: u64) -> Self {
        self.number_or_null(Some(number))
    }

    pub(crate) fn number_or_null(self, number: Option<u64>) -> Self {
        self.with(Argument::Number(number.map(u64::cast_signed)))
    }

    pub(crate) fn with(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }
}
