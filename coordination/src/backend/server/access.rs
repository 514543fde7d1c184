//! The URL options, shared by all stores with servers, that say who the client is and which servers it trusts.

use std::sync::Arc;

use super::credentials::{Access, Sources};
use super::source::Source;
use super::tls::{self, TlsSources};
use crate::error::{Error, Result};
use crate::url::{Host, Secret, Url};

pub(crate) const TLS_OPTIONS: [&str; 4] = ["ca", "cert", "key", "server_name"];

/// The option that names a file with the password.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper",
    test
))]
pub(crate) const PASSWORD_FILE: &str = "password_file";

/// Takes the password and the options for TLS out of the URL. `secure`: whether the client is to use TLS. If this is false, options
/// for TLS are an error, whose message recommends `scheme`.
///
/// `password_option`: the name of the option for a file with the password, which may be given if the URL itself has no password.
/// `check`: a further check of the password.
pub(crate) fn access(
    url: &mut Url,
    (secure, scheme): (bool, &str),
    password_option: &'static str,
    check: Option<fn(&Secret) -> Result<()>>,
) -> Result<Arc<Access>> {
    let tls = tls(url, secure, scheme)?;
    let password = password(url, password_option)?;
    Ok(Arc::new(Access::new(Sources { password, tls, check })?))
}

fn tls(url: &mut Url, secure: bool, scheme: &str) -> Result<Option<TlsSources>> {
    let options = TLS_OPTIONS.map(|name| url.take_option(name));
    if !secure && options.iter().all(Option::is_none) {
        return Ok(None);
    }
    // In a build without TLS, whatever asks for it is refused below.
    if !secure && tls::LACKING.is_none() {
        return Err(Error::config(format!(
            "`ca`, `cert`, `key` and `server_name` are for TLS: use {scheme}:// with them"
        )));
    }
    TlsSources::named(options).map(Some)
}

/// The namespace that the URL's path names.
pub(crate) fn path_namespace(url: &Url) -> Option<String> {
    let path = url.path.strip_prefix('/').unwrap_or_default();
    (!path.is_empty()).then(|| path.to_owned())
}

/// The servers of the URL, at least one, each with its port.
pub(crate) fn hosts(url: &Url, default_port: u16) -> Result<Vec<Host>> {
    if url.hosts.is_empty() {
        let scheme = &url.scheme;
        return Err(Error::config(format!(
            "the URL names no host, as in {scheme}://127.0.0.1:{default_port}"
        )));
    }
    let with_port = |host: &Host| Host { port: host.port.or(Some(default_port)), ..host.clone() };
    Ok(url.hosts.iter().map(with_port).collect())
}

fn password(url: &mut Url, option: &'static str) -> Result<Option<Source>> {
    match (url.password.clone(), url.take_option(option)) {
        (Some(_), Some(_)) => {
            let message = format!("a password stands in the URL or in `{option}`, not in both");
            Err(Error::config(message))
        }
        (None, Some(path)) => Ok(Some(Source::named(option, &path)?)),
        (password, None) => Ok(password.map(Source::Fixed)),
    }
}

/// The name of the user. Fails if there is a user and no password, or a password and no user.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn user(url: &Url, access: &Access) -> Result<Option<String>> {
    match (url.user.clone(), access.has_password()) {
        (Some(_), false) => Err(Error::config("the URL has a user and no password")),
        (None, true) => Err(Error::config("there is a password and the URL has no user")),
        (user, _) => Ok(user),
    }
}

#[cfg(all(test, feature = "_tls"))]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_place_of_a_file_is_not_shown() {
        for option in ["ca", "password_file", "cert=/dev/null&key"] {
            let mut url =
                Url::parse_by_scheme(&format!("etcds://h?{option}=CANARY")).expect("a URL");
            let read = access(&mut url, (true, "etcds"), PASSWORD_FILE, None);
            let error = read.expect_err("there is no such file");
            assert!(error.to_string().contains("cannot be read"), "{error}");
            assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
