//! The rows that a call returns.

use crate::error::{Effect, Error, ErrorKind, LossReason, Result};

/// A row, as the database driver returns it. If a column is missing, or has another type than the caller asks for, the row was not
/// returned by our functions, and the error is `Corrupt`.
pub(crate) trait Row: Send + Sync + 'static {
    /// The value of a column of bytes; `None`: NULL.
    fn bytes_or_null(&self, operation: &'static str, name: &str) -> Result<Option<Vec<u8>>>;

    /// The value of a column of numbers; `None`: NULL.
    fn signed(&self, operation: &'static str, name: &str) -> Result<Option<i64>>;

    fn flag(&self, operation: &'static str, name: &str) -> Result<bool>;

    /// The text in the column `status`; `None`: the row has no such column, or it is NULL.
    fn status(&self) -> Option<String>;

    fn bytes(&self, operation: &'static str, name: &str) -> Result<Vec<u8>> {
        self.bytes_or_null(operation, name)?.ok_or_else(|| corrupt(operation))
    }

    /// The text in a column of bytes. Only this library writes into such a column, so bytes that are not UTF-8 are `Corrupt`.
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

/// The rows that a call returned.
pub(crate) struct Answer<R> {
    operation: &'static str,
    pub(crate) rows: Vec<R>,
}

impl<R: Row> Answer<R> {
    /// Each function says in a status how the call went. Some statuses are errors that mean the same in all functions: for these,
    /// returns the error. What the other statuses mean depends on the function, so they are left to the caller.
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

    /// The status in the first row; empty if there is no row or no status.
    pub(crate) fn status(&self) -> String {
        self.rows.first().and_then(Row::status).unwrap_or_default()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.status() == "ok"
    }

    /// The first row. Most functions return only this one.
    pub(crate) fn row(&self) -> Result<&R> {
        self.rows.first().ok_or_else(|| corrupt(self.operation))
    }

    /// A number in the first row; `None`: NULL.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        self.row()?.number_or_null(self.operation, name)
    }

    /// Bytes in the first row; `None`: NULL.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.row()?.bytes_or_null(self.operation, name)
    }
}

/// The error for an answer that cannot be read. The function that gave this answer has committed its transaction, so the call may
/// have had an effect.
pub(crate) fn corrupt(operation: &'static str) -> Error {
    let message =
        "the server's answer is not one that this library's functions and procedures give";
    Error::new(ErrorKind::Corrupt, operation, message).with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that has none of the columns that are asked for.
    struct Strange;

    impl Row for Strange {
        fn bytes_or_null(&self, operation: &'static str, _: &str) -> Result<Option<Vec<u8>>> {
            Err(corrupt(operation))
        }

        fn signed(&self, operation: &'static str, _: &str) -> Result<Option<i64>> {
            Err(corrupt(operation))
        }

        fn flag(&self, operation: &'static str, _: &str) -> Result<bool> {
            Err(corrupt(operation))
        }

        fn status(&self) -> Option<String> {
            None
        }
    }

    #[test]
    fn a_committed_step_whose_answer_cannot_be_read_may_have_had_an_effect() {
        for rows in [vec![Strange], vec![]] {
            let answer = Answer::checked("enter", rows).expect("no status");
            let error = answer.number("seq").expect_err("no number");
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Unknown));
        }
    }
}
