//! Writes a call as an SQL statement, and reads columns of its answer.
//!
//! A call is one statement, which is a transaction by itself, and takes one round trip. The text of the statement depends only on the
//! function, so that it can be prepared once for all calls of the function on a connection (`prepared.rs`).

use std::error::Error as StdError;
use std::fmt::{self, Write as _};

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type};

use super::config::Schema;
use crate::backend::Beside;
use crate::backend::server::sql::{Argument, Call, corrupt};
use crate::error::Result;

/// An argument of a statement, with its SQL type, so that the server need not be asked for the type first. The type depends on the
/// call's function and the argument's place, but not on its value: so a prepared statement fits all calls of the function.
pub(super) type Typed<'a> = (Value<'a>, Type);

/// The value of an argument. It does not show itself: when a prepared statement is sent, the client crate writes the values into its
/// log (`log`, level debug), where neither users' data nor the names of channels belong.
pub(super) struct Value<'a>(Box<dyn ToSql + Sync + Send + 'a>);

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(of, out)
    }

    /// The value within is asked, when it is written.
    fn accepts(_of: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(of, out)
    }

    fn encode_format(&self, of: &Type) -> Format {
        self.0.encode_format(of)
    }
}

/// The text of the statement that calls the call's function in `schema`, with a placeholder (`$1`, `$2`, …) for each of its
/// arguments.
pub(super) fn text_of(call: &Call, arguments: usize, schema: &Schema) -> String {
    let mut text = format!("SELECT * FROM {schema}.{}(", call.function);
    for place in 1..=arguments {
        let before = if place == 1 { "$" } else { ", $" };
        // The result is ignored, because writing to a string does not fail.
        let _ = write!(text, "{before}{place}");
    }
    text.push(')');
    text
}

/// The arguments of the statement. Some calls also send the number of the connection (`generation`) or the name of this client's
/// channel.
pub(super) fn arguments<'a>(call: &'a Call, generation: i64, channel: &'a str) -> Vec<Typed<'a>> {
    let mut typed: Vec<Typed<'a>> = Vec::with_capacity(call.arguments.len());
    for argument in &call.arguments {
        let one: Typed<'a> = match argument {
            Argument::Bytes(bytes) => (Value(Box::new(bytes)), Type::BYTEA),
            Argument::Number(number) => (Value(Box::new(number)), Type::INT8),
            Argument::Flag(flag) => (Value(Box::new(flag)), Type::BOOL),
            Argument::Generation => (Value(Box::new(generation)), Type::INT8),
            Argument::Channel => (Value(Box::new(channel)), Type::TEXT),
            Argument::Ids(all) | Argument::Names(all) => list(all.iter().map(|one| Some(&**one))),
            Argument::Records(records) => {
                let data = |record: &'a Beside| record.data.as_deref();
                typed.push(list(records.iter().map(|record| Some(&*record.name))));
                typed.push(list(records.iter().map(data)));
                continue;
            }
        };
        typed.push(one);
    }
    typed
}

fn list<'a>(all: impl Iterator<Item = Option<&'a str>>) -> Typed<'a> {
    let all: Vec<_> = all.map(|one| one.map(str::as_bytes)).collect();
    (Value(Box::new(all)), Type::BYTEA_ARRAY)
}

/// The value of the column `name`. The error is `Corrupt` if the column is missing or has another type than `T`.
pub(super) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    operation: &'static str,
    name: &str,
) -> Result<T> {
    row.try_get(name).map_err(|error| corrupt(operation).with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SessionId;

    #[test]
    fn values_do_not_show_themselves() {
        let records = vec![Beside { name: "secret".into(), data: None, is_new: false }];
        let call = Call::new("write", "x").bytes("secret").with(Argument::Channel);
        let call = call.with(Argument::Records(records));
        let shown = format!("{:?}", arguments(&call, 7, "secret"));
        // As a text, and as the bytes of one.
        assert!(!shown.contains("secret") && !shown.contains("115, 101"), "{shown}");
    }

    #[test]
    fn a_statement_has_a_place_for_each_argument() {
        let session = SessionId::random();
        let call = Call::new("enter", "enter").of(session).flag(true).number(u64::MAX);
        let schema = Schema::of_tests("user");
        let of = |call: &Call| text_of(call, arguments(call, 7, "c").len(), &schema);
        assert_eq!(of(&call), "SELECT * FROM \"user\".enter($1, $2, $3, $4)");
        assert_eq!(of(&Call::new("list", "x")), "SELECT * FROM \"user\".x()");
        let records = Call::new("write", "x").with(Argument::Records(Vec::new()));
        assert_eq!(of(&records), "SELECT * FROM \"user\".x($1, $2)", "names and data");
    }
}
