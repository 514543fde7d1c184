//! Parses a `redis` URL into a [`Config`].

use std::sync::Arc;
use std::time::Duration;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::duration;
use crate::error::{Error, Result};
use crate::url::{Host, Url};

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// The longest `quarantine` that a URL may ask for. It is as long as the longest lease that the library allows: after this time,
/// every lease that the server may have forgotten is over, so a longer quarantine has no use.
const LONGEST_QUARANTINE: Duration = Duration::from_secs(24 * 60 * 60);

/// The options and servers of a `redis` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(super) place: Place,
    pub(super) database: i64,
    pub(super) user: Option<String>,
    pub(super) access: Arc<Access>,
    /// The option `quarantine`: after the server may have forgotten grants, it grants this client nothing for this long. `None`:
    /// for as long as the longest lease that the server may have forgotten.
    pub(super) quarantine: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) enum Place {
    /// The server, or a node of the cluster, is at one of these hosts.
    Hosts(Vec<Host>),
    /// These hosts are Sentinels, and the server is the master that they know under this name.
    Sentinels(Vec<Host>, String),
    /// The server listens on the Unix socket at this path, on our own host.
    Socket(String),
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = (url.scheme == "rediss", "rediss");
        let access = access::access(url, secure, access::PASSWORD_FILE, None)?;
        if url.user.is_some() && !access.has_password() {
            return Err(Error::config("the URL has a user and no password"));
        }
        let (place, database) = match url.scheme.as_str() {
            "redis+unix" | "unix" => socket(url)?,
            _ => hosts(url)?,
        };
        let quarantine = quarantine(url.take_option("quarantine").as_deref())?;
        Ok(Self { place, database, user: url.user.clone(), access, quarantine })
    }
}

fn socket(url: &mut Url) -> Result<(Place, i64)> {
    if !url.hosts.is_empty() || url.path.len() < 2 {
        return Err(Error::config(
            "the path of a socket follows three slashes, as in redis+unix:///run/redis.sock",
        ));
    }
    let database = url.take_option("db").unwrap_or_default();
    Ok((Place::Socket(url.path.clone()), number(&database)?))
}

fn hosts(url: &mut Url) -> Result<(Place, i64)> {
    if url.hosts.is_empty() {
        return Err(Error::config("a redis URL names a host, as in redis://127.0.0.1:6379"));
    }
    let path = url.path.trim_matches('/').to_owned();
    let database = match (path.as_str(), url.take_option("db")) {
        (_, None) => path,
        ("", Some(option)) => option,
        _ => return Err(Error::config("give the database by the path or by `db`, not both")),
    };
    let sentinel = url.take_option("sentinel");
    let with_port = |default: u16| {
        let hosts = url.hosts.iter().cloned();
        hosts.map(|host| Host { port: host.port.or(Some(default)), ..host }).collect()
    };
    let place = match sentinel {
        Some(name) if name.is_empty() => {
            return Err(Error::config("option `sentinel` is the name of the master"));
        }
        Some(name) => Place::Sentinels(with_port(DEFAULT_SENTINEL_PORT), name),
        None => Place::Hosts(with_port(DEFAULT_PORT)),
    };
    Ok((place, number(&database)?))
}

fn number(database: &str) -> Result<i64> {
    const MESSAGE: &str =
        "the path of a redis URL is the number of a database, from 0; the namespace is an option";
    let database = if database.is_empty() { "0" } else { database };
    database.parse::<u32>().map(i64::from).map_err(|_| Error::config(MESSAGE))
}

fn quarantine(option: Option<&str>) -> Result<Option<Duration>> {
    let length = match option {
        None => return Ok(None),
        Some("off") => Duration::ZERO,
        Some(text) => duration::parse(text)
            .map_err(|problem| Error::config(format!("option `quarantine`: {problem}")))?,
    };
    if length > LONGEST_QUARANTINE {
        return Err(Error::config(format!(
            "`quarantine` is {length:?}; it may be `off`, or at most {LONGEST_QUARANTINE:?}"
        )));
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::parse(&mut Url::parse_by_scheme(url)?)
    }

    #[test]
    fn urls_name_hosts_sentinels_and_sockets() {
        let config = parse("redis://:pw@h/3?quarantine=off").expect("a host");
        assert!(matches!(&config.place, Place::Hosts(hosts) if hosts[0].to_string() == "h:6379"));
        assert_eq!((config.database, config.user), (3, None));
        assert_eq!(config.quarantine, Some(Duration::ZERO));
        let config = parse("redis://h?quarantine=24h").expect("the longest");
        assert_eq!(config.quarantine, Some(LONGEST_QUARANTINE));
        assert_eq!(LONGEST_QUARANTINE.as_secs(), 86_400);
        let config = parse("redis://a,b:1?sentinel=m&db=2").expect("two sentinels");
        assert!(matches!(&config.place, Place::Sentinels(hosts, name)
            if name == "m" && hosts[0].to_string() == "a:26379" && hosts[1].port == Some(1)));
        assert_eq!((config.database, config.quarantine), (2, None));
        let config = parse("redis+unix:///run/redis.sock?db=1").expect("a socket");
        assert!(matches!(&config.place, Place::Socket(path) if path == "/run/redis.sock"));
        assert_eq!(config.database, 1);
    }

    #[test]
    fn wrong_urls_are_refused() {
        for url in [
            "redis://",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/1?db=2",
            "redis://h?sentinel=",
            "redis://h?quarantine=soon",
            "redis://h?quarantine=25h",
            "redis://h?ca=/dev/null",
            "redis://user@h",
            "redis+unix://h/x",
            "unix://",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
