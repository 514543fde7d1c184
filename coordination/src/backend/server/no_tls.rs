//! In the place of `tls.rs` in a build without the features `tls` and `tls-ring`: whatever asks for TLS is refused when the URL is
//! parsed.
//!
//! The types have no values, so the functions that take one are never called. They are there so that nothing else differs between
//! the two builds.

use std::io;

use super::source::Source;
use crate::error::{Error, ErrorKind, Result};

/// What a build lacks in which TLS is asked for.
pub(super) const LACKING: Option<&str> = Some(MISSING);

const MISSING: &str = "the URL asks for TLS, which this build does not have: turn on the cargo feature `tls` (or `tls-ring`) of coordination";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(super) enum TlsSources {}

impl Tls {
    pub(crate) fn trial() -> Option<Self> {
        None
    }

    pub(crate) fn server_name(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn has_identity(&self) -> bool {
        match *self {}
    }
}

impl TlsSources {
    pub(super) fn named(_options: [Option<String>; 4]) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "configure", MISSING))
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Source> {
        std::iter::empty()
    }

    pub(super) fn read(&self) -> Result<Tls> {
        match *self {}
    }
}

pub(crate) async fn secured<S>(_stream: S, tls: &Tls, _host: &str) -> io::Result<S> {
    match *tls {}
}

#[cfg(test)]
mod tests {
    use crate::backend::registry::Target;
    use crate::config::Config;
    use crate::error::{Error, ErrorKind};

    fn refusal(url: &str) -> Option<Error> {
        Target::parse(url, Config::default()).err()
    }

    /// Whether the store of this URL is built in.
    fn is_built_in(url: &str) -> bool {
        let stores = [
            ("etcd", cfg!(feature = "etcd")),
            ("zookeeper", cfg!(feature = "zookeeper")),
            ("consul", cfg!(feature = "consul")),
            ("redis", cfg!(feature = "redis")),
            ("postgres", cfg!(feature = "postgres")),
            ("mysql", cfg!(feature = "mysql")),
        ];
        stores.iter().any(|(store, is_built_in)| *is_built_in && url.starts_with(store))
    }

    #[test]
    fn what_asks_for_tls_is_refused_and_the_feature_is_named() {
        let asking = [
            "etcds://u:CANARY@h",
            "etcd://h?ca=CANARY",
            "zookeeper+tls://u:CANARY@h",
            "zookeeper://h?cert=CANARY&key=CANARY",
            "consul+https://:CANARY@h",
            "consul://h?server_name=CANARY",
            "rediss://:CANARY@h",
            "redis://h?ca=CANARY",
            "postgres://u:CANARY@h/d",
            "postgres://u:CANARY@localhost,h/d",
            "postgres://u:CANARY@localhost/d?sslmode=verify-full",
            "postgres://u@[::1]/d?ca=CANARY",
            "mysql://u:CANARY@h/d",
            "mysql://u:CANARY@localhost/d?ssl-mode=verify_identity",
            "mysql://u@localhost/d?cert=CANARY&key=CANARY",
        ];
        for url in asking.into_iter().filter(|url| is_built_in(url)) {
            let error = refusal(url).expect(url);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}");
            assert!(error.to_string().contains("feature `tls`"), "{error}");
            assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        }
    }

    #[test]
    fn a_mode_between_is_no_weaker_here() {
        let between = ["postgres://u@h/d?sslmode=prefer", "mysql://u@h/d?ssl-mode=preferred"];
        for url in between.into_iter().filter(|url| is_built_in(url)) {
            assert_eq!(refusal(url).expect(url).kind(), ErrorKind::Config, "{url}");
        }
    }

    #[test]
    fn a_host_elsewhere_is_told_how_to_do_without() {
        let elsewhere =
            [("postgres://u@h/d", "sslmode=disable"), ("mysql://u@h/d", "ssl-mode=disabled")];
        for (url, without) in elsewhere.into_iter().filter(|(url, _)| is_built_in(url)) {
            let error = refusal(url).expect(url);
            assert!(error.to_string().contains(without), "{error}");
        }
    }

    #[test]
    fn whatever_does_without_is_as_ever() {
        let plain = [
            "etcd://u:pw@h",
            "zookeeper://u:pw@h",
            "consul://h",
            "redis://:pw@h",
            "postgres://u:pw@localhost/d",
            "postgres://u:pw@h/d?sslmode=disable",
            "mysql://u:pw@127.0.0.1/d",
            "mysql://u:pw@h/d?ssl-mode=disabled",
        ];
        for url in plain.into_iter().filter(|url| is_built_in(url)) {
            assert!(refusal(url).is_none(), "{url}");
        }
    }
}
