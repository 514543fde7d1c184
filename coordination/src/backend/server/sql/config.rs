//! The part of a URL that is the same for PostgreSQL and MySQL: the hosts, the user, the password, and whether to use TLS.

use std::net::IpAddr;
use std::sync::Arc;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::backend::server::tls;
use crate::error::{Error, ErrorKind, Result};
use crate::url::{Host, Url};

/// The servers, and the user and the credentials with which to connect to them.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    /// A primary and its replicas, each with its port, in any order: the client tries one after the other until it finds the one
    /// that accepts writes.
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) access: Arc<Access>,
}

/// The URL option that turns TLS on or off, and its values.
pub(crate) struct Modes {
    pub(crate) option: &'static str,
    pub(crate) on: &'static str,
    pub(crate) off: &'static str,
    /// Values that are errors here, although the server's own clients accept them: with these values, those clients may connect
    /// without TLS, or do not make sure that the server is the right one.
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

/// Whether to use TLS. With TLS, the client always verifies the server. If the URL has neither the option of `modes` nor an option
/// that is only for TLS, TLS is used unless every host of the URL is the local host.
fn is_secure(url: &mut Url, hosts: &[Host], modes: &Modes) -> Result<bool> {
    let Modes { option, on, off, between } = *modes;
    let wants_tls = access::TLS_OPTIONS.iter().any(|name| url.has_option(name));
    let Some(mode) = url.take_option(option) else {
        let secure = wants_tls || !hosts.iter().all(is_local);
        return match tls::LACKING {
            Some(lacking) if secure && !wants_tls => Err(Error::new(
                ErrorKind::Unsupported,
                "configure",
                format!(
                    "{lacking}; a host elsewhere is asked for TLS unless the URL says `{option}={off}`"
                ),
            )),
            _ => Ok(secure),
        };
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
