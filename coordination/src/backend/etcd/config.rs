//! Parses a URL into a typed configuration.

use std::sync::Arc;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::error::Result;
use crate::url::{Host, Url};

const DEFAULT_PORT: u16 = 2379;

/// The options and endpoints of an `etcd` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The endpoints in the order of the URL, each with its port.
    pub(super) hosts: Vec<Host>,
    pub(super) user: Option<String>,
    /// The credentials, with the user's password.
    pub(super) access: Arc<Access>,
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = matches!(url.scheme.as_str(), "etcds" | "etcd3+https");
        let access = access::access(url, (secure, "etcds"), access::PASSWORD_FILE, None)?;
        let user = access::user(url, &access)?;
        Ok(Self { hosts: access::hosts(url, DEFAULT_PORT)?, user, access })
    }
}
