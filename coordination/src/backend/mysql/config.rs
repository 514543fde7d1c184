//! Parses a `mysql` or `mariadb` URL into a [`Config`].

use std::fmt;

use crate::backend::server::sql::{Modes, Servers};
use crate::error::{Error, Result};
use crate::url::Url;

const MODES: Modes = Modes {
    option: "ssl-mode",
    on: "verify_identity",
    off: "disabled",
    between: &["preferred", "required", "verify_ca"],
};
const DEFAULT_PORT: u16 = 3306;
const DEFAULT_DATABASE: &str = "coordination";
/// The longest name that the server allows for a database, in characters.
const LONGEST_DATABASE: usize = 64;

/// The options and servers of a `mysql` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(super) servers: Servers,
    pub(super) database: Database,
}

/// The database that has our tables. It is displayed in backticks, for use in SQL, because the name may be an SQL keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Database {
    pub(super) name: String,
    /// Whether this is the default database, because the URL names none. Only the default database is created if it does not exist.
    pub(super) is_default: bool,
}

impl fmt::Display for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`", self.name)
    }
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let servers = Servers::parse(url, "mysql", DEFAULT_PORT, &MODES)?;
        let database = database(&url.path)?;
        Ok(Self { servers, database })
    }
}

fn database(path: &str) -> Result<Database> {
    let name = path.trim_matches('/');
    if name.is_empty() {
        return Ok(Database { name: DEFAULT_DATABASE.to_owned(), is_default: true });
    }
    let is_good = name.chars().count() <= LONGEST_DATABASE
        && !name.ends_with(' ')
        && !name.contains(['\0', '`', '/', '\\', '.']);
    match is_good {
        true => Ok(Database { name: name.to_owned(), is_default: false }),
        false => Err(Error::config(
            "a database's name has at most 64 characters, none of them a zero byte, `/`, `\\`, `.` or a backtick, and no \
             blank at its end",
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
    fn urls_name_hosts_a_user_and_a_database() {
        let config = parse("mysql://u:pw@h1,h2:1/d").expect("two hosts");
        let hosts: Vec<_> = config.servers.hosts.iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["h1:3306", "h2:1"]);
        assert_eq!((&*config.servers.user, &*config.database.name), ("u", "d"));
        assert_eq!(
            (config.database.to_string().as_str(), config.database.is_default),
            ("`d`", false)
        );
        let config = parse("mariadb://u@127.0.0.1").expect("a local host");
        assert_eq!((&*config.database.name, config.database.is_default), (DEFAULT_DATABASE, true));
    }

    #[test]
    fn a_host_elsewhere_is_verified_unless_the_url_says_otherwise() {
        let is_secure = |url: &str| parse(url).expect(url).servers.access.is_secure();
        assert!(is_secure("mysql://u@h"));
        assert!(is_secure("mysql://u@localhost,h"));
        assert!(is_secure("mysql://u@localhost?ssl-mode=VERIFY_IDENTITY"));
        assert!(is_secure("mysql://u@[::1]?server_name=db"));
        assert!(!is_secure("mysql://u@[::1],localhost"));
        assert!(!is_secure("mysql://u@h?ssl-mode=DISABLED"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for url in [
            "mysql://h/d",
            "mysql:///d",
            "mysql://u@h?ssl-mode=PREFERRED",
            "mysql://u@h?ssl-mode=REQUIRED",
            "mysql://u@h?ssl-mode=yes",
            "mysql://u@h?ssl-mode=disabled&server_name=x",
            "mysql://u@h/a%60b",
            "mysql://u@h/a/b",
            "mysql://u@h/a%20",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), crate::ErrorKind::Config, "{url}");
        }
    }
}
