//! How a client shows who it is and checks whom it talks to: the options that every store with a server has.

use std::path::Path;

use crate::error::{Error, Result};
use crate::url::{Host, Secret, Url};

/// The options of [`tls`].
pub(crate) const TLS_OPTIONS: [&str; 4] = ["ca", "cert", "key", "server_name"];

/// The option of [`password`].
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper", test))]
pub(crate) const PASSWORD_FILE: &str = "password_file";

/// Contents of PEM files, and the name the server's certificate must have.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// Default: the system's certificates.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
    pub(crate) server_name: Option<String>,
}

/// Takes the options for TLS, which only go with a scheme that is it; `scheme` names that one.
pub(crate) fn tls(url: &mut Url, secure: bool, scheme: &str) -> Result<Option<Tls>> {
    let options = TLS_OPTIONS.map(|name| url.take_option(name));
    if !secure {
        if options.iter().any(Option::is_some) {
            return Err(Error::config(format!(
                "`ca`, `cert`, `key` and `server_name` are for TLS: use {scheme}:// with them"
            )));
        }
        return Ok(None);
    }
    let [ca, cert, key, server_name] = options;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => {
            let key = String::from_utf8(read("key", &key)?)
                .map_err(|_| Error::config("option `key`: the file is not PEM text"))?;
            Some((read("cert", &cert)?, Secret::new(key)))
        }
        (None, None) => None,
        _ => return Err(Error::config("`cert` and `key` go together: give both or none")),
    };
    let ca = ca.map(|path| read("ca", &path)).transpose()?;
    Ok(Some(Tls { ca, identity, server_name }))
}

/// The namespace that the URL's path names.
pub(crate) fn path_namespace(url: &Url) -> Option<String> {
    let path = url.path.strip_prefix('/').unwrap_or_default();
    (!path.is_empty()).then(|| path.to_owned())
}

/// The servers, of which there is one at least, each with its port.
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

/// The password: in the URL, or in the file that this option names, where a line break at its end does not count.
pub(crate) fn password(url: &mut Url, option: &'static str) -> Result<Option<Secret>> {
    match (url.password.clone(), url.take_option(option)) {
        (Some(_), Some(_)) => {
            let message = format!("a password stands in the URL or in `{option}`, not in both");
            Err(Error::config(message))
        }
        (None, Some(path)) => {
            let text = String::from_utf8(read(option, &path)?)
                .map_err(|_| Error::config(format!("option `{option}`: the file is not text")))?;
            Ok(Some(Secret::new(text.trim_end_matches(['\r', '\n']).to_owned())))
        }
        (password, None) => Ok(password),
    }
}

/// User and password, which go together.
#[cfg_attr(feature = "redis", allow(dead_code, reason = "Redis has a password without a user"))]
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper", test))]
pub(crate) fn user(url: &mut Url) -> Result<Option<(String, Secret)>> {
    match (url.user.clone(), password(url, PASSWORD_FILE)?) {
        (Some(user), Some(password)) => Ok(Some((user, password))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::config("the URL has a user and no password")),
        (None, Some(_)) => Err(Error::config("there is a password and the URL has no user")),
    }
}

fn read(option: &'static str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(Path::new(path)).map_err(|error| {
        // Not the path: somebody may have given the secret itself.
        Error::config(format!(
            "option `{option}`: the file it names cannot be read: {}",
            error.kind()
        ))
        .with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_place_of_a_file_is_not_shown() {
        for option in ["ca", "password_file", "cert=/dev/null&key"] {
            let mut url = Url::parse(&format!("etcds://h?{option}=CANARY")).expect("a URL");
            let read = tls(&mut url, true, "etcds").and_then(|_| user(&mut url));
            let error = read.expect_err("there is no such file");
            assert!(error.to_string().contains("cannot be read"), "{error}");
            assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
