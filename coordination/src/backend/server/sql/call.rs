//! A call of one of our functions or procedures in the database: its name and its arguments. The dialect writes it as SQL.

use std::sync::Arc;

use crate::backend::{Beside, SessionId};

/// A call, before it is known on which connection it will be sent.
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) function: &'static str,
    pub(crate) arguments: Vec<Argument>,
}

/// An argument of a function. A dialect may write one of these as several SQL arguments, or leave it out.
pub(crate) enum Argument {
    Bytes(Option<Vec<u8>>),
    /// Signed, as the servers have no unsigned `BIGINT` in common. A `u64` is sent as the number with the same bits.
    Number(Option<i64>),
    Flag(bool),
    /// The epoch of the connection on which the call is sent.
    Generation,
    /// The channel on which the server notifies this client. MySQL has no notifications, and no such argument.
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

    /// Makes this a call of the session. The server rejects it (`stale`) if a call of the session has already arrived on a newer
    /// connection.
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
