//! URL → typed configuration.

use crate::backend::server::access::{self, Tls};
use crate::error::{Error, Result};
use crate::url::{Secret, Url};

const DEFAULT_PORT: u16 = 2379;

/// What the URL says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `http://host:port` or `https://host:port`, in the order of the URL.
    pub(super) endpoints: Vec<String>,
    pub(super) user: Option<(String, Secret)>,
    /// Present for the TLS schemes.
    pub(super) tls: Option<Tls>,
}

impl Config {
    /// The namespace that the URL's path names.
    pub(crate) fn namespace(url: &Url) -> Option<String> {
        let path = url.path.strip_prefix('/').unwrap_or_default();
        (!path.is_empty()).then(|| path.to_owned())
    }

    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = matches!(url.scheme.as_str(), "etcds" | "etcd3+https");
        let tls = access::tls(url, secure, "etcds")?;
        let user = access::user(url)?;
        if url.hosts.is_empty() {
            return Err(Error::config("an etcd URL names a host, as in etcd://127.0.0.1:2379"));
        }
        let scheme = if secure { "https" } else { "http" };
        let endpoints = url.hosts.iter().map(|host| {
            let mut host = host.clone();
            host.port = host.port.or(Some(DEFAULT_PORT));
            format!("{scheme}://{host}")
        });
        Ok(Self { endpoints: endpoints.collect(), user, tls })
    }
}
