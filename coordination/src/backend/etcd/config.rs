//! URL → typed configuration.

use crate::backend::server::access::{self, Tls};
use crate::error::Result;
use crate::url::{Host, Secret, Url};

const DEFAULT_PORT: u16 = 2379;

/// What the URL says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// In the order of the URL, each with its port.
    pub(super) hosts: Vec<Host>,
    pub(super) user: Option<(String, Secret)>,
    /// Present for the TLS schemes.
    pub(super) tls: Option<Tls>,
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = matches!(url.scheme.as_str(), "etcds" | "etcd3+https");
        let tls = access::tls(url, secure, "etcds")?;
        let user = access::user(url)?;
        Ok(Self { hosts: access::hosts(url, DEFAULT_PORT)?, user, tls })
    }
}
