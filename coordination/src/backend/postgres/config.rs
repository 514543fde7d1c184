//! Parses a `postgres` URL into a [`Config`].

use std::fmt;

use crate::backend::server::sql::{Modes, Servers};
use crate::error::{Error, Result};
use crate::url::Url;

const MODES: Modes = Modes {
    option: "sslmode",
    on: "verify-full",
    off: "disable",
    between: &["allow", "prefer", "require", "verify-ca"],
};
const DEFAULT_PORT: u16 = 5432;
const DEFAULT_SCHEMA: &str = "coordination";
/// The longest name that a schema may have, in bytes. The server would truncate a longer one.
const LONGEST_SCHEMA: usize = 63;

/// The options and servers of a `postgres` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(super) servers: Servers,
    pub(super) database: String,
    /// The schema in which our tables and functions are.
    pub(super) schema: Schema,
}

/// A schema's name. It is displayed in double quotes, for use in SQL, because the name may be an SQL keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema(String);

impl Schema {
    pub(super) fn name(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn of_tests(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.0)
    }
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let servers = Servers::parse(url, "postgres", DEFAULT_PORT, &MODES)?;
        let database = url.path.trim_matches('/').to_owned();
        let database = if database.is_empty() { servers.user.clone() } else { database };
        if database.contains('\0') {
            return Err(Error::config("no database has a zero byte in its name"));
        }
        let schema = schema(url.take_option("schema"))?;
        check_target(url.take_option("target_session_attrs").as_deref())?;
        Ok(Self { servers, database, schema })
    }
}

fn schema(option: Option<String>) -> Result<Schema> {
    let schema = option.unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
    let is_good = (1..=LONGEST_SCHEMA).contains(&schema.len())
        && !schema.starts_with(|first: char| first.is_ascii_digit())
        && !schema.starts_with("pg_")
        && schema.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    match is_good {
        true => Ok(Schema(schema)),
        false => Err(Error::config(
            "`schema` is made of 1 to 63 of [a-z0-9_], and begins with neither a digit nor `pg_`",
        )),
    }
}

fn check_target(option: Option<&str>) -> Result<()> {
    match option {
        None | Some("read-write" | "primary") => Ok(()),
        Some(_) => Err(Error::config(
            "`target_session_attrs` is `read-write`, also without being given: nothing can be locked on a replica",
        )),
    }
}

// Hosts elsewhere are asked for TLS.
#[cfg(all(test, feature = "_tls"))]
mod tests {
    use super::*;
    use crate::url::Host;

    fn parse(url: &str) -> Result<Config> {
        Config::parse(&mut Url::parse_by_scheme(url)?)
    }

    #[test]
    fn urls_name_hosts_a_user_a_database_and_a_schema() {
        let config =
            parse("postgres://u:pw@h1,h2:1/d?schema=locks_2&target_session_attrs=read-write")
                .expect("two hosts");
        let hosts: Vec<_> = config.servers.hosts.iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["h1:5432", "h2:1"]);
        assert_eq!(
            (&*config.servers.user, &*config.database, config.schema.name()),
            ("u", "d", "locks_2")
        );
        assert!(config.servers.access.is_secure());
        let config = parse("postgres://u@127.0.0.1").expect("a local host");
        assert_eq!((&*config.database, config.schema.name()), ("u", DEFAULT_SCHEMA));
        assert!(!config.servers.access.is_secure());
    }

    #[test]
    fn a_host_elsewhere_is_verified_unless_the_url_says_otherwise() {
        let is_secure = |url: &str| parse(url).expect(url).servers.access.is_secure();
        assert!(is_secure("postgres://u@h"));
        assert!(is_secure("postgres://u@localhost,h"));
        assert!(is_secure("postgres://u@localhost?sslmode=verify-full"));
        assert!(is_secure("postgres://u@localhost?sslmode=VERIFY-FULL"));
        assert!(is_secure("postgres://u@[::1]?server_name=db"));
        assert!(!is_secure("postgres://u@[::1],localhost"));
        assert!(!is_secure("postgres://u@h?sslmode=disable"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for url in [
            "postgres://h/d",
            "postgres:///d",
            "postgres://u@h?sslmode=prefer",
            "postgres://u@h?sslmode=require",
            "postgres://u@h?sslmode=yes",
            "postgres://u@h?sslmode=disable&server_name=x",
            "postgres://u@h?schema=",
            "postgres://u@h?schema=A",
            "postgres://u@h?schema=a%22b",
            "postgres://u@h?schema=pg_temp",
            "postgres://u@h?target_session_attrs=standby",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), crate::ErrorKind::Config, "{url}");
        }
    }
}
