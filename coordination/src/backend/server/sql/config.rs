//! The part of a URL that is the same for all of them: who is asked, as whom, and by TLS or not.

use std::net::IpAddr;
use std::sync::Arc;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::error::{Error, Result};
use crate::url::{Host, Url};

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    /// Of one installation, each with its port: one of them can be written to.
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) access: Arc<Access>,
}

/// How a URL says whether to speak by TLS: an option and what that may be.
pub(crate) struct Modes {
    pub(crate) option: &'static str,
    pub(crate) on: &'static str,
    pub(crate) off: &'static str,
    /// Those that look safe and are not.
    pub(crate) between: &'static [&'static str],
}

impl Servers {
    pub(crate) fn parse(
        url: &mut Url,
        scheme: &'static str,
        default_port: u16,
        modes: &Modes,
    ) -> Result<Self> {
        let hosts = access::hosts(url, default_port)?;
        let secure = (is_secure(url, &hosts, modes)?, scheme);
        let access = access::access(url, secure, access::PASSWORD_FILE, None)?;
        let user = url.user.clone().ok_or_else(|| {
            Error::config(format!(
                "a {scheme} URL names a user, as in {scheme}://user@host/database"
            ))
        })?;
        if user.contains('\0') {
            return Err(Error::config("no user has a zero byte in his name"));
        }
        Ok(Self { hosts, user, access })
    }
}

/// Whether to speak by TLS, which always verifies the server. Without a word about it that is done unless all hosts are this
/// one; the modes that look safe and are not are refused.
fn is_secure(url: &mut Url, hosts: &[Host], modes: &Modes) -> Result<bool> {
    let Modes { option, on, off, between } = *modes;
    let wants_tls = access::TLS_OPTIONS.iter().any(|name| url.has_option(name));
    let Some(mode) = url.take_option(option) else {
        return Ok(wants_tls || !hosts.iter().all(is_local));
    };
    let is = |name: &&str| mode.eq_ignore_ascii_case(name);
    if is(&on) {
        return Ok(true);
    }
    let message = if is(&off) && wants_tls {
        format!(
            "`ca`, `cert`, `key` and `server_name` are for TLS, which `{option}={off}` turns off"
        )
    } else if is(&off) {
        return Ok(false);
    } else if between.iter().any(is) {
        format!(
            "`{option}` is `{on}`, or `{off}`: the modes between do not tell whether the server is the right one. `ca` and \
             `server_name` say whom to trust"
        )
    } else {
        format!("`{option}` is `{on}` or `{off}`")
    };
    Err(Error::config(message))
}

fn is_local(host: &Host) -> bool {
    host.name == "localhost" || host.name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
