//! URL → typed configuration.

use crate::backend::server::access::{self, Tls};
use crate::error::Result;
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
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = matches!(url.scheme.as_str(), "etcds" | "etcd3+https");
        let tls = access::tls(url, secure, "etcds")?;
        let user = access::user(url)?;
        let scheme = if secure { "https" } else { "http" };
        let hosts = access::hosts(url, DEFAULT_PORT)?;
        let endpoints = hosts.iter().map(|host| format!("{scheme}://{host}"));
        Ok(Self { endpoints: endpoints.collect(), user, tls })
    }
}
