//! Parses a URL into a typed configuration.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::backend::server::access;
use crate::backend::server::credentials::{Access, Credentials};
use crate::duration;
use crate::error::{Error, Result};
use crate::url::{Host, Secret, Url};

const DEFAULT_PORT: u16 = 8500;
const TOKEN: HeaderName = HeaderName::from_static("x-consul-token");

/// The longest lock-delay that Consul takes.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The options and agents of a `consul` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The agents, all of one datacenter, each with its port.
    pub(super) hosts: Vec<Host>,
    /// The datacenter; `None`: the agent's own.
    pub(super) datacenter: Option<String>,
    /// After a session was ended by force (its lease ran out, or an operator ended it), nobody else can lock its keys for this
    /// long.
    pub(super) lock_delay: Duration,
    /// The certificates for TLS, and as the password the ACL token, if there is one.
    pub(super) access: Arc<Access>,
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        if url.user.is_some() {
            return Err(Error::config(
                "Consul has tokens and no users: write it as a password, consul://:token@host",
            ));
        }
        let secure = (url.scheme == "consul+https", "consul+https");
        let check = |token: &Secret| header(token).map(drop);
        let access = access::access(url, secure, "token_file", Some(check))?;
        let hosts = access::hosts(url, DEFAULT_PORT)?;
        let lock_delay = match url.take_option("lock_delay") {
            None => Duration::ZERO,
            Some(text) => lock_delay(&text)
                .map_err(|problem| Error::config(format!("option `lock_delay`: {problem}")))?,
        };
        Ok(Self { hosts, datacenter: url.take_option("dc"), lock_delay, access })
    }
}

/// The headers of each request: the ACL token, if there is one.
pub(super) fn headers(credentials: &Credentials) -> Result<HeaderMap> {
    let token = credentials.password.as_ref().map(header).transpose()?;
    Ok(token.into_iter().map(|token| (TOKEN, token)).collect())
}

fn lock_delay(text: &str) -> Result<Duration, String> {
    let delay = duration::parse(text)?;
    if delay > LONGEST_DELAY {
        return Err(format!(
            "{delay:?} is longer than {LONGEST_DELAY:?}, the longest that Consul takes"
        ));
    }
    Ok(delay)
}

fn header(token: &Secret) -> Result<HeaderValue> {
    let is_visible = token.expose().bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::from_str(token.expose()).ok();
    let value = value.filter(|value| is_visible && !value.is_empty());
    let mut value =
        value.ok_or_else(|| Error::config("a token is made of visible ASCII characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config> {
        Config::parse(&mut Url::parse_by_scheme(text)?)
    }

    #[test]
    fn a_url_says_where_and_with_what() -> Result<()> {
        let config = parsed("consul://:secret@h,[::1]:1/ns?dc=east&lock_delay=1500ms")?;
        let hosts: Vec<_> = config.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h:8500", "[::1]:1"]);
        assert_eq!(headers(&config.access.newest())?[TOKEN], "secret");
        assert_eq!(config.datacenter.as_deref(), Some("east"));
        assert_eq!(config.lock_delay, Duration::from_millis(1500));
        assert_eq!(parsed("consul://h")?.lock_delay, Duration::ZERO);
        assert!(!format!("{config:?}").contains("secret"));
        Ok(())
    }

    #[test]
    fn what_consul_would_not_take_is_refused() {
        for text in [
            "consul://",
            "consul://user:CANARY@h",
            "consul://:CANARY%0A@h",
            "consul://:CANARY@h?token_file=/dev/null",
            "consul://h?token_file=/dev/null",
            "consul://h?ca=/dev/null",
            "consul://h?lock_delay=61s",
            "consul://h?lock_delay=long",
        ] {
            let error = parsed(text).expect_err(text);
            assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
