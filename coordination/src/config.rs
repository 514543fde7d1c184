//! Settings: what a user may set, where, and what is allowed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use serde::{Deserialize, Serialize, Serializer};

use crate::characteristics::Requirement;
use crate::duration;
use crate::env;
use crate::error::{Error, NameError, Result};
use crate::key::{DEFAULT_MAX_NAME_BYTES, HARD_MAX_NAME_BYTES};
use crate::url::{self, Url};

const DEFAULT_NAMESPACE: &str = "coordination";
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(1);
const DEFAULT_INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const DEFAULT_MAX_BACKOFF: Duration = Duration::from_secs(60);
const DEFAULT_LONG_WAIT: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_MEMBER_BYTES: usize = 255;

/// Everything that can be set, readable with serde from a service's own configuration file.
///
/// What is set here wins over the same option in the URL, as in Tooz. Durations are numbers of
/// seconds (`10`, `0.5`) or text with a unit (`"500ms"`, `"5s"`, `"2m"`, `"1h"`).
///
/// In code it is made of its defaults, or of a [`Builder`](crate::Builder). Later versions may have more fields.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let config: coordination::Config = serde_json::from_str(
///     r#"{ "url": "memory://", "prefix": "manila-", "ttl": "10s", "heartbeat": 1.0 }"#,
/// ).expect("a valid configuration");
/// let coordinator = config.connect().await?;
/// assert!(coordinator.member_id().starts_with("manila-"));
///
/// let mut config = coordination::Config::from(coordination::Coordinator::builder().prefix("app-"));
/// config.url = Some("memory://".to_owned());
/// assert_eq!(config.connect().await?.lock("vol-7")?.name(), "app-vol-7");
/// # Ok(()) }
/// ```
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// The URL of the store. Required by [`connect`](Self::connect).
    ///
    /// When a `Config` is serialised, the password in its URL is written as `***`. To pass a `Config` on with serde, name a file with the
    /// password by the URL option `password_file`.
    #[serde(serialize_with = "url_without_password")]
    pub url: Option<String>,
    /// The member id of this process: unique among live sessions, at most 255 bytes with the prefix. Default:
    /// 128 random bits in hexadecimal.
    pub member_id: Option<String>,
    /// Put before the member id and before every lock name, as in Tooz and Manila. Default: empty.
    pub prefix: String,
    /// What the store's keys begin with: 1 to 200 of `[A-Za-z0-9_.-]`. Default: `coordination`.
    pub namespace: Option<String>,
    /// The lease asked for, 100 ms to 24 h. Default: 10 s. If heartbeats stop, the locks of this process are
    /// free for others after the lease that the store granted, which may be longer. Stores without leases
    /// (memory, file) ignore it.
    #[serde(with = "duration::option")]
    pub ttl: Option<Duration>,
    /// Time between heartbeats, at least 1 ms, and at most a third of the granted lease. Default: 1 s.
    #[serde(with = "duration::option")]
    pub heartbeat: Option<Duration>,
    /// Shortest delay before another attempt to reach the store, at least 1 ms. Default: 0.1 s.
    #[serde(with = "duration::option")]
    pub initial_reconnect_backoff: Option<Duration>,
    /// Longest delay before another attempt to reach the store. Default: 60 s; but never more than twice the
    /// lease, so that work resumes soon after a fault has ended.
    #[serde(with = "duration::option")]
    pub max_reconnect_backoff: Option<Duration>,
    /// A wait for a lock, or for a turn in another recipe, that takes longer than this is warned of once, in an event. At least
    /// 1 ms. Default: 30 s.
    #[serde(with = "duration::option")]
    pub long_wait: Option<Duration>,
    /// What the store must be able to do; if it cannot, connecting fails. The names are in the crate's
    /// documentation, at the URL option `require`.
    pub require: Vec<String>,
    /// Longest lock name in bytes, with the prefix: 1 to 65,536. Default: 1,024.
    pub max_name_bytes: Option<usize>,
    /// Whether heartbeats run on the caller's tokio runtime instead of a thread of their own, so that a
    /// program whose executor hangs loses its locks. With `memory://` they always do, if there is a runtime.
    /// Default: false.
    pub heartbeat_on_current_runtime: bool,
}

impl Config {
    pub(crate) fn named_url(&self) -> Result<&str> {
        self.url.as_deref().ok_or_else(|| {
            Error::config("`url` is not set; it names the store, as in file:///var/lib/app/locks")
        })
    }
}

fn url_without_password<S: Serializer>(
    url: &Option<String>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    url.as_deref().map(url::without_password).serialize(to)
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password, so it is not printed.
        f.debug_struct("Config")
            .field("url", &self.url.as_ref().map(|_| "***"))
            .field("member_id", &self.member_id)
            .field("prefix", &self.prefix)
            .field("namespace", &self.namespace)
            .field("ttl", &self.ttl)
            .field("heartbeat", &self.heartbeat)
            .field("initial_reconnect_backoff", &self.initial_reconnect_backoff)
            .field("max_reconnect_backoff", &self.max_reconnect_backoff)
            .field("long_wait", &self.long_wait)
            .field("require", &self.require)
            .field("max_name_bytes", &self.max_name_bytes)
            .field("heartbeat_on_current_runtime", &self.heartbeat_on_current_runtime)
            .finish()
    }
}

/// [`Config`] and URL options put together, checked, with the defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) member: Arc<str>,
    pub(crate) prefix: String,
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) initial_backoff: Duration,
    pub(crate) max_backoff: Duration,
    pub(crate) long_wait: Duration,
    pub(crate) require: Vec<Requirement>,
    pub(crate) max_name_bytes: usize,
    pub(crate) current_runtime: bool,
}

impl Settings {
    /// How long one call to the store may take under a lease of this length: at most a sixth of it, so that three calls fit into
    /// the lease with time to spare.
    pub(crate) fn call_timeout(&self, lease: Duration) -> Duration {
        self.heartbeat.min(lease / 6)
    }

    /// Takes the common options out of `url`, and checks all settings; `path_namespace` is the namespace in the URL's path.
    pub(crate) fn resolve(
        config: Config,
        url: &mut Url,
        path_namespace: Option<String>,
    ) -> Result<Self> {
        let option_namespace = url.take_option("namespace");
        let namespace = match (config.namespace, option_namespace, path_namespace) {
            (Some(namespace), _, _) => namespace,
            (None, Some(option), Some(path)) if option != path => {
                return Err(Error::config(format!(
                    "the URL's path says namespace {path:?} and its option says {option:?}; give one of them"
                )));
            }
            (None, Some(namespace), _) | (None, None, Some(namespace)) => namespace,
            (None, None, None) => DEFAULT_NAMESPACE.to_owned(),
        };
        let settings = Self {
            member: member(&config.prefix, config.member_id)?,
            prefix: config.prefix,
            namespace: checked_namespace(namespace)?,
            ttl: setting(config.ttl, url, "ttl", DEFAULT_TTL, MIN_TTL..=MAX_TTL)?,
            heartbeat: setting(
                config.heartbeat,
                url,
                "heartbeat",
                DEFAULT_HEARTBEAT,
                SHORTEST..=MAX_TTL,
            )?,
            initial_backoff: setting(
                config.initial_reconnect_backoff,
                url,
                "initial_reconnect_backoff",
                DEFAULT_INITIAL_BACKOFF,
                SHORTEST..=MAX_TTL,
            )?,
            max_backoff: setting(
                config.max_reconnect_backoff,
                url,
                "max_reconnect_backoff",
                DEFAULT_MAX_BACKOFF,
                SHORTEST..=MAX_TTL,
            )?,
            long_wait: setting(
                config.long_wait,
                url,
                "long_wait",
                DEFAULT_LONG_WAIT,
                SHORTEST..=MAX_TTL,
            )?,
            require: requirements(config.require, url.take_option("require"))?,
            max_name_bytes: config.max_name_bytes.unwrap_or(DEFAULT_MAX_NAME_BYTES),
            current_runtime: config.heartbeat_on_current_runtime,
        };
        if !(1..=HARD_MAX_NAME_BYTES).contains(&settings.max_name_bytes) {
            return Err(Error::config(format!(
                "`max_name_bytes` is {}; it may be 1 to {HARD_MAX_NAME_BYTES}",
                settings.max_name_bytes
            )));
        }
        Ok(settings)
    }
}

const SHORTEST: Duration = Duration::from_millis(1);

fn setting(
    configured: Option<Duration>,
    url: &mut Url,
    name: &'static str,
    default: Duration,
    allowed: std::ops::RangeInclusive<Duration>,
) -> Result<Duration> {
    let option = url.take_option(name);
    let value = match (configured, option) {
        (Some(value), _) => value,
        (None, Some(text)) => duration::parse(&text)
            .map_err(|problem| Error::config(format!("option `{name}`: {problem}")))?,
        (None, None) => default,
    };
    if allowed.contains(&value) {
        return Ok(value);
    }
    Err(Error::config(format!(
        "`{name}` is {value:?}; it may be {:?} to {:?}",
        allowed.start(),
        allowed.end()
    )))
}

fn member(prefix: &str, id: Option<String>) -> Result<Arc<str>> {
    let id = match id {
        Some(id) if id.is_empty() => return Err(NameError::Empty.into()),
        Some(id) => id,
        None => format!("{:032x}", env::rng().random::<u128>()),
    };
    checked_member(&format!("{prefix}{id}"))
}

/// Returns the member id, if it is neither empty nor too long.
pub(crate) fn checked_member(id: &str) -> Result<Arc<str>> {
    match id.len() {
        0 => Err(NameError::Empty.into()),
        len if len > MAX_MEMBER_BYTES => {
            Err(NameError::TooLong { len, max: MAX_MEMBER_BYTES }.into())
        }
        _ => Ok(id.into()),
    }
}

fn checked_namespace(namespace: String) -> Result<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let is_good = (1..=200).contains(&namespace.len())
        && !matches!(namespace.as_str(), "." | "..")
        // A slash is not allowed. With it, the keys of one namespace could lie within another namespace, whose locks would be mixed
        // with those of the first (S8 in `docs/guarantees.md`).
        && namespace.bytes().all(allowed);
    if is_good {
        return Ok(namespace);
    }
    Err(Error::config(format!(
        "namespace {namespace:?}: allowed are 1 to 200 of [A-Za-z0-9_.-], without slashes, and neither `.` nor `..`"
    )))
}

fn requirements(configured: Vec<String>, option: Option<String>) -> Result<Vec<Requirement>> {
    let option = option.unwrap_or_default();
    let from_url = option.split(',').filter(|item| !item.is_empty());
    configured.iter().map(String::as_str).chain(from_url).map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_serialised_has_no_password_and_is_else_as_it_was() {
        let written = |url: &str| {
            let config = Config { url: Some(url.to_owned()), ..Config::default() };
            let json = serde_json::to_value(config).expect("it can be written");
            json["url"].as_str().expect("text").to_owned()
        };
        let without = [
            "memory://name?ttl=10s&member_id=a%26b",
            "file:///var/a@b:c?durable=true",
            "etcds://user@host:1,other:2/a?password_file=/etc/a:b%40c",
            "etcd://[::1]:2379,[::2]/a%40b",
        ];
        for url in without {
            assert_eq!(written(url), url);
        }
        let with = [
            ("etcds://user:SECRET@host:1/a", "etcds://user:***@host:1/a"),
            ("redis://:SECRET@host", "redis://:***@host"),
            ("postgres://u:S:E@C@host?a=b", "postgres://u:***@host?a=b"),
            ("user:SECRET", "***"),
            ("redis://:SEC/RET@host", "***"),
            ("redis://user:SEC/RET@host", "***"),
            ("redis://:S@EC/RET@host", "***"),
            ("redis://user:S@E?CRET@host", "***"),
            ("redis://user:12/SECRET@host", "***"),
        ];
        for (url, expected) in with {
            assert_eq!(written(url), expected);
        }
    }
}
