//! What is kept at the store: JSON text, bounded on the way in and not trusted on the way out.

use serde::Serialize;

use crate::backend::Data;
use crate::error::{Error, ErrorKind, Result};

/// What fits into an entry.
pub(crate) const MAX_ENTRY_BYTES: usize = 4 * 1024;
/// What fits into a queue's value.
pub(crate) const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Text for the store of something that a user gave, at most `max` bytes.
///
/// # Errors
///
/// [`ErrorKind::Value`](crate::ErrorKind::Value): it cannot be written as JSON, or is too large.
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

/// What the text from the store says.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): it is not what this library writes there.
pub(crate) fn from_data<T: serde::de::DeserializeOwned>(
    operation: &'static str,
    data: &str,
) -> Result<T> {
    serde_json::from_str(data).map_err(|error| {
        let message = "what the store has there is not of the type that is expected";
        Error::new(ErrorKind::Corrupt, operation, message).with_source(error)
    })
}

/// What a store has, for the tests of those who read it.
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
            mode,
            data: data.into(),
        }
    }

    pub(crate) fn listing(entries: Vec<Entry>, value: Option<&str>) -> Listing {
        let value = value.map(|data| Value { version: 1, data: data.into() });
        Listing { entries, value, ..Listing::default() }
    }

    /// A queue with a value, and nobody in it.
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
