//! Writes a call as an SQL statement, and reads columns of its answer.
//!
//! A call is one statement and takes one round trip. It is not prepared, so that no prepared statement stays on the connection.
//! Texts are written into the statement as hexadecimal literals, which mean the same with all settings of the server and need no
//! escaping.

use std::fmt::Write as _;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use mysql_async::Row;
use mysql_async::prelude::FromValue;

use crate::backend::Beside;
use crate::backend::server::sql::{Argument, Call, corrupt};
use crate::error::Result;

/// The text of a call's statement, which calls the procedure of that name. Some calls also send the number of the connection
/// (`generation`).
///
/// `records_of` is a query. A procedure would be given the names as one text, and could not find the records by an index.
pub(super) fn text_of(call: &Call, generation: u64) -> String {
    let mut arguments = Vec::with_capacity(call.arguments.len());
    for argument in &call.arguments {
        match argument {
            Argument::Bytes(bytes) => arguments.push(or_null(bytes.as_ref().map(literal))),
            Argument::Number(number) => arguments.push(or_null(*number)),
            Argument::Flag(flag) => {
                arguments.push(if *flag { "TRUE" } else { "FALSE" }.to_owned());
            }
            Argument::Generation => arguments.push(generation.cast_signed().to_string()),
            Argument::Channel => {}
            Argument::Ids(ids) => {
                let width = ids.first().map_or(1, |id| id.len());
                arguments.extend([literal(ids.concat()), width.to_string()]);
            }
            Argument::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| literal(name.as_bytes())).collect();
                arguments.push(names.join(", "));
            }
            Argument::Records(records) => arguments.extend(written(records)),
        }
    }
    match (call.function, &*arguments) {
        ("records_of", [path, names]) => format!(
            "SELECT r.name AS name, r.data AS data FROM coordination_queues q \
               JOIN coordination_records r FORCE INDEX (PRIMARY) ON r.queue = q.id \
             WHERE q.path = {path} AND r.name IN ({names})"
        ),
        (function, arguments) => format!("CALL coordination_{function}({})", arguments.join(", ")),
    }
}

/// Records as four arguments of the procedure `coordination_write`: the names, with commas between them; the lengths of the texts
/// in bytes, with commas between them, or `-` for a record that is to be removed; the texts one after the other; and how many
/// records there are.
fn written(records: &[Beside]) -> [String; 4] {
    let length = |data: &Option<Arc<str>>| {
        data.as_ref().map_or_else(|| "-".to_owned(), |data| data.len().to_string())
    };
    let names: Vec<_> = records.iter().map(|record| &*record.name).collect();
    let lengths: Vec<_> = records.iter().map(|record| length(&record.data)).collect();
    let data: String = records.iter().filter_map(|record| record.data.as_deref()).collect();
    let texts = [names.join(","), lengths.join(","), data].map(literal);
    let [names, lengths, data] = texts;
    [names, lengths, data, records.len().to_string()]
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// Bytes as a hexadecimal literal of SQL, such as `X'6162'`.
pub(super) fn literal(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    // The result is ignored, because writing to a string does not fail.
    let _ = write!(text, "X'{}'", HEXLOWER.encode_display(bytes));
    text
}

/// The value of the column `name`. The error is `Corrupt` if the column is missing or has another type than `T`.
pub(super) fn column<T: FromValue>(row: &Row, operation: &'static str, name: &str) -> Result<T> {
    let value = row.get_opt(name).and_then(std::result::Result::ok);
    value.ok_or_else(|| corrupt(operation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SessionId;

    #[test]
    fn a_statement_has_the_number_of_its_connection() {
        let session = SessionId::random();
        let call = Call::new("enter", "enter").of(session).flag(true).number(u64::MAX);
        let id = literal(session.to_string());
        assert_eq!(text_of(&call, 7), format!("CALL coordination_enter({id}, 7, TRUE, -1)"));
        let call = Call::new("list", "x").with(Argument::Channel);
        assert_eq!(text_of(&call, 7), "CALL coordination_x()");
    }

    #[test]
    fn nothing_that_is_given_is_read_as_a_statement() {
        let call = Call::new("list", "x").bytes("a'\\\0\n é").with(Argument::Bytes(None));
        assert_eq!(text_of(&call, 1), "CALL coordination_x(X'61275c000a20c3a9', NULL)");
        assert_eq!(literal(""), "X''");
    }

    #[test]
    fn what_is_given_together_stands_in_few_arguments() {
        let ids = Call::new("renew", "x").with(Argument::Ids(vec!["ab".into(), "cd".into()]));
        assert_eq!(text_of(&ids, 1), "CALL coordination_x(X'61626364', 2)");
        let names = Argument::Names(vec!["a".into(), "b".into()]);
        let read = text_of(&Call::new("read", "records_of").bytes("p").with(names), 1);
        assert!(read.ends_with("WHERE q.path = X'70' AND r.name IN (X'61', X'62')"), "{read}");
        let record = |name: &str, data: Option<&str>| Beside {
            name: name.into(),
            data: data.map(Into::into),
            is_new: false,
        };
        let records = vec![record("a", Some("xyz")), record("b", None)];
        let records = Call::new("write", "x").with(Argument::Records(records));
        assert_eq!(text_of(&records, 1), "CALL coordination_x(X'612c62', X'332c2d', X'78797a', 2)");
    }
}
