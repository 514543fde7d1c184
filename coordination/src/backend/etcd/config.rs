//! URL → typed configuration.

use std::path::Path;

use crate::error::{Error, Result};
use crate::url::{Secret, Url};

const DEFAULT_PORT: u16 = 2379;

/// The options beyond the common ones.
pub(crate) const OPTIONS: &[&str] = &["ca", "cert", "key", "server_name", "password_file"];

/// What the URL says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `http://host:port` or `https://host:port`, in the order of the URL.
    pub(super) endpoints: Vec<String>,
    pub(super) user: Option<(String, Secret)>,
    /// Present for the TLS schemes.
    pub(super) tls: Option<Tls>,
}

/// Contents of PEM files, and the name the server's certificate must have.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    /// Default: the system's certificates.
    pub(super) ca: Option<Vec<u8>>,
    pub(super) identity: Option<(Vec<u8>, Secret)>,
    pub(super) server_name: Option<String>,
}

impl Config {
    /// The namespace that the URL's path names.
    pub(crate) fn namespace(url: &Url) -> Option<String> {
        let path = url.path.strip_prefix('/').unwrap_or_default();
        (!path.is_empty()).then(|| path.to_owned())
    }

    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = matches!(url.scheme.as_str(), "etcds" | "etcd3+https");
        let tls = tls(url, secure)?;
        let user = user(url)?;
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

fn tls(url: &mut Url, secure: bool) -> Result<Option<Tls>> {
    let options = ["ca", "cert", "key", "server_name"].map(|name| url.take_option(name));
    if !secure {
        if options.iter().any(Option::is_some) {
            let message =
                "`ca`, `cert`, `key` and `server_name` are for TLS: use etcds:// with them";
            return Err(Error::config(message));
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

fn user(url: &mut Url) -> Result<Option<(String, Secret)>> {
    let file = url.take_option("password_file");
    let password = match (url.password.clone(), file) {
        (Some(_), Some(_)) => {
            return Err(Error::config(
                "give the password in the URL or by `password_file`, not both",
            ));
        }
        (None, Some(path)) => {
            let text = String::from_utf8(read("password_file", &path)?)
                .map_err(|_| Error::config("option `password_file`: the file is not text"))?;
            Some(Secret::new(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        (password, None) => password,
    };
    match (url.user.clone(), password) {
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
            let error = Config::parse(&mut url).expect_err("there is no such file");
            assert!(error.to_string().contains("cannot be read"), "{error}");
            assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        }
    }
}
