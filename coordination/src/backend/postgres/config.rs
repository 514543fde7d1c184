//! URL → typed configuration.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::error::{Error, Result};
use crate::url::{Host, Url};

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_SCHEMA: &str = "coordination";
/// What the server cuts names at, less than that by one.
const LONGEST_SCHEMA: usize = 63;

/// What the URL says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Servers of one cluster, each with its port: one of them can be written to.
    pub(super) hosts: Vec<Host>,
    pub(super) database: String,
    pub(super) user: String,
    /// In which our tables are.
    pub(super) schema: Schema,
    pub(super) access: Arc<Access>,
}

/// A schema's name. Shown as statements have it: in quotes, as it may be a word of the language's own.
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
        let hosts = access::hosts(url, DEFAULT_PORT)?;
        let secure = (is_secure(url, &hosts)?, "postgres");
        let access = access::access(url, secure, access::PASSWORD_FILE, None)?;
        let user = url.user.clone().ok_or_else(|| {
            Error::config("a postgres URL names a user, as in postgres://user@host/database")
        })?;
        let database = url.path.trim_matches('/').to_owned();
        let database = if database.is_empty() { user.clone() } else { database };
        for text in [&user, &database] {
            if text.contains('\0') {
                return Err(Error::config("no user and no database has a zero byte in its name"));
            }
        }
        let schema = schema(url.take_option("schema"))?;
        check_target(url.take_option("target_session_attrs").as_deref())?;
        Ok(Self { hosts, database, user, schema, access })
    }
}

/// Whether to speak by TLS, which always verifies the server. Without a word about it that is done unless all hosts are this
/// one; the modes that look safe and are not are refused.
fn is_secure(url: &mut Url, hosts: &[Host]) -> Result<bool> {
    let wants_tls = access::TLS_OPTIONS.iter().any(|name| url.has_option(name));
    match url.take_option("sslmode").as_deref() {
        None => Ok(wants_tls || !hosts.iter().all(is_local)),
        Some("verify-full") => Ok(true),
        Some("disable") if wants_tls => Err(Error::config(
            "`ca`, `cert`, `key` and `server_name` are for TLS, which `sslmode=disable` turns off",
        )),
        Some("disable") => Ok(false),
        Some("allow" | "prefer" | "require" | "verify-ca") => Err(Error::config(
            "`sslmode` is `verify-full`, or `disable`: the modes between do not tell whether the server is the right one. \
             `ca` and `server_name` say whom to trust",
        )),
        Some(_) => Err(Error::config("`sslmode` is `verify-full` or `disable`")),
    }
}

fn is_local(host: &Host) -> bool {
    host.name == "localhost" || host.name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::parse(&mut Url::parse_by_scheme(url)?)
    }

    #[test]
    fn urls_name_hosts_a_user_a_database_and_a_schema() {
        let config =
            parse("postgres://u:pw@h1,h2:1/d?schema=locks_2&target_session_attrs=read-write")
                .expect("two hosts");
        let hosts: Vec<_> = config.hosts.iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["h1:5432", "h2:1"]);
        assert_eq!((&*config.user, &*config.database, config.schema.name()), ("u", "d", "locks_2"));
        assert!(config.access.is_secure());
        let config = parse("postgres://u@127.0.0.1").expect("a local host");
        assert_eq!((&*config.database, config.schema.name()), ("u", DEFAULT_SCHEMA));
        assert!(!config.access.is_secure());
    }

    #[test]
    fn a_host_elsewhere_is_verified_unless_the_url_says_otherwise() {
        let is_secure = |url: &str| parse(url).expect(url).access.is_secure();
        assert!(is_secure("postgres://u@h"));
        assert!(is_secure("postgres://u@localhost,h"));
        assert!(is_secure("postgres://u@localhost?sslmode=verify-full"));
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
