//! A role that has no rights but those that the store's page asks for.

use std::net::SocketAddr;

use super::super::rights::{grants, make_tables};
use super::ask;

/// What stands before the address in the URLs of the role.
pub(super) const USER: &str = "app:secret@";
/// The schemas in which the role may use the tables. `one` and `two` are those of other stores on the same server.
const SCHEMAS: [&str; 3] = ["coordination", "one", "two"];
const PAGE: &str = include_str!("../../../../docs/backends/postgres.md");

/// Makes the library's tables in each schema, and then the role, with the page's rights in these schemas. What everybody may do
/// by default, the role may not.
pub(super) fn make_role(address: SocketAddr) {
    let tell = |statement: &str| {
        let told = ask(address, "postgres", "postgres", statement);
        told.unwrap_or_else(|said| panic!("{statement}: {said}"))
    };
    tell("CREATE ROLE app LOGIN PASSWORD 'secret'");
    tell("REVOKE ALL ON DATABASE postgres FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC");
    tell("GRANT CONNECT ON DATABASE postgres TO app");
    for schema in SCHEMAS {
        let url = format!("postgres://postgres@{address}/postgres?sslmode=disable&schema={schema}");
        make_tables(&url);
        for right in grants(PAGE) {
            tell(&right.replace("SCHEMA coordination", &format!("SCHEMA {schema}")));
        }
    }
}
