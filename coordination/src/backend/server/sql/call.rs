//! A call of one of our functions or procedures in the database, as the function's name and the arguments. The dialect writes the
//! SQL for it.

use std::sync::Arc;

use crate::backend::{Beside, SessionId};

/// A call. It does not depend on the connection on which it will be sent.
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) function: &'static str,
    pub(crate) arguments: Vec<Argument>,
}

/// An argument of a function. A dialect may write one `Argument` as several arguments in SQL, or leave it out.
pub(crate) enum Argument {
    Bytes(Option<Vec<u8>>),
    /// The number is signed, because PostgreSQL has no unsigned `BIGINT`. A `u64` is sent as the signed number with the same bits.
    Number(Option<i64>),
    Flag(bool),
    /// The epoch of the connection on which the call is sent. The server compares these epochs: if a call of the session has come
    /// on a newer connection, the server rejects calls of the session that come on older connections.
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

    /// Adds the arguments of a call that is made for this session. The server rejects the call (`stale`) if it has already carried
    /// out a call of the session that came on a newer connection.
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
