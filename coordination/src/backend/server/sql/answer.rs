//! What a call answers.

use crate::error::{Error, ErrorKind, LossReason, Result};

/// A row, as the driver has it. What has another type than is asked for, or is not there, is none of our functions' answers.
pub(crate) trait Row: Send + Sync + 'static {
    /// What stands in a column of bytes.
    fn bytes_or_null(&self, operation: &'static str, name: &str) -> Result<Option<Vec<u8>>>;

    /// What stands in a column of numbers.
    fn signed(&self, operation: &'static str, name: &str) -> Result<Option<i64>>;

    fn flag(&self, operation: &'static str, name: &str) -> Result<bool>;

    /// What it says where that is a word; `None`: it has no such column.
    fn status(&self) -> Option<String>;

    fn bytes(&self, operation: &'static str, name: &str) -> Result<Vec<u8>> {
        self.bytes_or_null(operation, name)?.ok_or_else(|| corrupt(operation))
    }

    /// Text of our own, which is kept as bytes.
    fn text(&self, operation: &'static str, name: &str) -> Result<String> {
        String::from_utf8(self.bytes(operation, name)?).map_err(|_| corrupt(operation))
    }

    fn number_or_null(&self, operation: &'static str, name: &str) -> Result<Option<u64>> {
        let number = self.signed(operation, name)?;
        number.map(|number| u64::try_from(number).map_err(|_| corrupt(operation))).transpose()
    }

    fn number(&self, operation: &'static str, name: &str) -> Result<u64> {
        self.number_or_null(operation, name)?.ok_or_else(|| corrupt(operation))
    }
}

/// The rows that a call answered.
pub(crate) struct Answer<R> {
    operation: &'static str,
    pub(crate) rows: Vec<R>,
}

impl<R: Row> Answer<R> {
    /// What it says where that means the same in all functions.
    pub(crate) fn checked(operation: &'static str, rows: Vec<R>) -> Result<Self> {
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
    pub(crate) fn status(&self) -> String {
        self.rows.first().and_then(Row::status).unwrap_or_default()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.status() == "ok"
    }

    /// Where there is one row, that.
    pub(crate) fn row(&self) -> Result<&R> {
        self.rows.first().ok_or_else(|| corrupt(self.operation))
    }

    /// A number in that row, if it has one.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        self.row()?.number_or_null(self.operation, name)
    }

    /// Bytes in that row, if it has some.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.row()?.bytes_or_null(self.operation, name)
    }
}

pub(crate) fn corrupt(operation: &'static str) -> Error {
    let message = "the server's answer is none of this library's functions";
    Error::new(ErrorKind::Corrupt, operation, message)
}
