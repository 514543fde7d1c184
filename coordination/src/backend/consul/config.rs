//! URL → typed configuration.

use std::time::Duration;

use crate::backend::server::access::{self, Tls};
use crate::duration;
use crate::error::{Error, Result};
use crate::url::{Host, Secret, Url};

const DEFAULT_PORT: u16 = 8500;

/// The longest lock-delay that Consul takes.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// What the URL says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Agents of one datacenter, each with its port.
    pub(super) hosts: Vec<Host>,
    /// An ACL token.
    pub(super) token: Option<Secret>,
    /// Default: the agent's own datacenter.
    pub(super) datacenter: Option<String>,
    /// How long what a session had is kept from others when it was ended by force.
    pub(super) lock_delay: Duration,
    /// Present for `consul+https`.
    pub(super) tls: Option<Tls>,
}

impl Config {
    /// The namespace that the URL's path names.
    pub(crate) fn namespace(url: &Url) -> Option<String> {
        let path = url.path.strip_prefix('/').unwrap_or_default();
        (!path.is_empty()).then(|| path.to_owned())
    }

    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let tls = access::tls(url, url.scheme == "consul+https", "consul+https")?;
        if url.user.is_some() {
            return Err(Error::config(
                "Consul has tokens and no users: write it as a password, consul://:token@host",
            ));
        }
        let token = match (url.password.clone(), url.take_option("token_file")) {
            (Some(_), Some(_)) => {
                return Err(Error::config(
                    "give the token in the URL or by `token_file`, not both",
                ));
            }
            (None, Some(path)) => Some(access::secret_in("token_file", &path)?),
            (token, None) => token,
        };
        if token.as_ref().is_some_and(|token| !is_token(token.expose())) {
            return Err(Error::config("a token is made of visible ASCII characters"));
        }
        if url.hosts.is_empty() {
            return Err(Error::config("a Consul URL names a host, as in consul://127.0.0.1:8500"));
        }
        let hosts = url.hosts.iter().cloned().map(|mut host| {
            host.port = host.port.or(Some(DEFAULT_PORT));
            host
        });
        let hosts = hosts.collect();
        let lock_delay = match url.take_option("lock_delay") {
            None => Duration::ZERO,
            Some(text) => lock_delay(&text)
                .map_err(|problem| Error::config(format!("option `lock_delay`: {problem}")))?,
        };
        Ok(Self { hosts, token, datacenter: url.take_option("dc"), lock_delay, tls })
    }
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

/// Whether it can stand in the header of a request.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config> {
        Config::parse(&mut Url::parse(text)?)
    }

    #[test]
    fn a_url_says_where_and_with_what() -> Result<()> {
        let config = parsed("consul://:secret@h,[::1]:1/ns?dc=east&lock_delay=1500ms")?;
        let hosts: Vec<_> = config.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h:8500", "[::1]:1"]);
        assert_eq!(config.token.as_ref().map(Secret::expose), Some("secret"));
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
