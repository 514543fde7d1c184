//! What recipes keep at the store: JSON text, limited in size when written and not trusted when read.

use serde::Serialize;

use crate::backend::Data;
use crate::error::{Error, ErrorKind, Result};

/// The largest size of an entry's data, in bytes.
pub(crate) const MAX_ENTRY_BYTES: usize = 4 * 1024;
/// The largest size of a queue's value, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Makes JSON text of a user's value, of at most `max` bytes.
///
/// # Errors
///
/// [`ErrorKind::Value`](crate::ErrorKind::Value): the value cannot be written as JSON, or is too large.
pub(crate) fn to_data(
    operation: &'static str,
    value: &(impl Serialize + ?Sized),
    max: usize,
) -> Result<Data> {
    let text = serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::Value, operation, "it cannot be written as JSON").with_source(error)
    })?;
    if text.len() > max {
        let message = format!("it has {} bytes as JSON, and at most {max} are allowed", text.len());
        return Err(Error::new(ErrorKind::Value, operation, message));
    }
    Ok(text.into())
}

/// Reads a value from JSON text that the store has.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the text is not what this library writes there.
pub(crate) fn from_data<T: serde::de::DeserializeOwned>(
    operation: &'static str,
    data: &str,
) -> Result<T> {
    serde_json::from_str(data).map_err(|error| {
        let message = "what the store has there is not of the type that is expected";
        Error::new(ErrorKind::Corrupt, operation, message).with_source(error)
    })
}

/// Entries and listings that a store could return, for tests of the code that reads them.
#[cfg(test)]
pub(crate) mod stored {
    use super::Data;
    use crate::backend::{Entry, EntryId, Listing, Mode, SessionId, Value};

    pub(crate) fn entry(seq: u64, mode: Mode, data: impl Into<Data>) -> Entry {
        Entry {
            id: EntryId::random(SessionId::random()),
            seq,
            member: "".into(),
            since: None,
            label: None,
            mode,
            data: data.into(),
        }
    }

    pub(crate) fn listing(entries: Vec<Entry>, value: Option<&str>) -> Listing {
        let value = value.map(|data| Value { version: 1, data: data.into(), writer: None });
        Listing { entries, value, ..Listing::default() }
    }

    /// A queue with a value and without entries.
    pub(crate) fn value(data: &str) -> Listing {
        listing(Vec::new(), Some(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_written() {
        let ordinary = (0..2_000).map(|number| f64::from(number) / 997.0);
        for number in ordinary.chain([-1.777_777_777_777_777_8e248, f64::MAX, f64::MIN_POSITIVE]) {
            let data = to_data("set", &number, MAX_VALUE_BYTES).expect("a number");
            assert_eq!(from_data::<f64>("read", &data).ok(), Some(number), "{data}");
        }
    }
}
