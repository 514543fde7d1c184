//! Parses a URL into a typed configuration.

use std::sync::Arc;

use crate::backend::server::access;
use crate::backend::server::credentials::Access;
use crate::error::{Error, Result};
use crate::url::{Host, Url};

const DEFAULT_PORT: u16 = 2181;

/// The options and servers of a `zookeeper` URL.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The servers, in the order of the URL, each with its port.
    pub(super) servers: Vec<Host>,
    pub(super) user: Option<String>,
    /// The password of the user, and the certificates for TLS.
    pub(super) access: Arc<Access>,
    /// The part of the path before the namespace. Empty, or with a slash at its beginning and none at its end.
    pub(super) chroot: String,
    /// Whether only the user who made a node may access it. Otherwise everybody may.
    pub(super) is_private: bool,
    pub(super) style: Style,
    pub(super) parents: Parents,
}

/// The library whose names the nodes of entries have. Locks of that library and our locks exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// The names that the Python library kazoo gives to nodes.
    Kazoo,
    /// The names that the Java library Curator gives to nodes.
    Curator,
}

/// What happens to a queue's node when the queue has become empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parents {
    /// The server removes the node.
    Container,
    /// The node stays. kazoo needs this: its lock object makes the node only once, and fails if the node was removed.
    Persistent,
}

impl Config {
    /// The namespace that a URL has in its path: the last segment.
    pub(crate) fn namespace(url: &Url) -> Option<String> {
        let (_, namespace) = url.path.rsplit_once('/')?;
        (!namespace.is_empty()).then(|| namespace.to_owned())
    }

    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let secure = url.scheme.ends_with("+tls");
        let secure = (secure, "zookeeper+tls");
        let access = access::access(url, secure, access::PASSWORD_FILE, None)?;
        if access.used().tls.as_ref().is_some_and(|tls| tls.server_name().is_some()) {
            return Err(Error::config(
                "zookeeper+tls:// has no `server_name`: the URL names the hosts as their certificates do",
            ));
        }
        let user = access::user(url, &access)?;
        let is_private = match (url.take_option("acl").as_deref(), &user) {
            (None, user) => user.is_some(),
            (Some("open"), _) => false,
            (Some("creator"), Some(_)) => true,
            (Some("creator"), None) => {
                return Err(Error::config("option `acl`: `creator` needs a user and a password"));
            }
            _ => return Err(Error::config("option `acl`: it may be `creator` or `open`")),
        };
        let style = match url.take_option("nodes").as_deref() {
            None | Some("kazoo") => Style::Kazoo,
            Some("curator") => Style::Curator,
            _ => return Err(Error::config("option `nodes`: it may be `kazoo` or `curator`")),
        };
        let parents = match url.take_option("parents").as_deref() {
            None | Some("container") => Parents::Container,
            Some("persistent") => Parents::Persistent,
            _ => {
                let message = "option `parents`: it may be `container` or `persistent`";
                return Err(Error::config(message));
            }
        };
        if url.hosts.is_empty() {
            let message = "a ZooKeeper URL names a host, as in zookeeper://127.0.0.1:2181";
            return Err(Error::config(message));
        }
        let servers = url.hosts.iter().map(|host| {
            let port = host.port.or(Some(DEFAULT_PORT));
            Host { port, ..host.clone() }
        });
        let servers = servers.collect();
        let chroot = chroot(&url.path)?;
        Ok(Self { servers, user, access, chroot, is_private, style, parents })
    }
}

/// The part of a URL's path before the namespace.
fn chroot(path: &str) -> Result<String> {
    let before = path.rsplit_once('/').map_or("", |(before, _)| before);
    let is_name = |segment: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        !segment.is_empty() && !matches!(segment, "." | "..") && segment.bytes().all(allowed)
    };
    // The first segment is skipped: it is the empty text before the first slash.
    if before.is_empty() || before.split('/').skip(1).all(is_name) {
        return Ok(before.to_owned());
    }
    Err(Error::config(
        "the path before the namespace is made of segments of [A-Za-z0-9_.-], none of them `.` or `..`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn parse(text: &str) -> Result<(Option<String>, Config)> {
        let mut url = Url::parse_by_scheme(text)?;
        Ok((Config::namespace(&url), Config::parse(&mut url)?))
    }

    #[test]
    fn the_path_is_a_chroot_and_the_namespace_within_it() -> Result<()> {
        let (namespace, config) = parse("zk://h1,h2:2182/storage/a.b/locks")?;
        assert_eq!(namespace.as_deref(), Some("locks"));
        assert_eq!(config.chroot, "/storage/a.b");
        let servers: Vec<_> = config.servers.iter().map(Host::to_string).collect();
        assert_eq!(servers, ["h1:2181", "h2:2182"]);
        for (url, expected) in [("zk://h", None), ("zk://h/", None), ("zk://h/a", Some("a"))] {
            let (namespace, config) = parse(url)?;
            assert_eq!((namespace.as_deref(), config.chroot.as_str()), (expected, ""), "{url}");
        }
        Ok(())
    }

    #[test]
    fn nodes_are_private_where_there_is_a_user() -> Result<()> {
        assert!(parse("zk://a:b@h")?.1.is_private);
        assert!(!parse("zk://a:b@h?acl=open")?.1.is_private);
        assert!(!parse("zk://h")?.1.is_private);
        assert_eq!(parse("zk://h?nodes=curator")?.1.style, Style::Curator);
        assert_eq!(parse("zk://h")?.1.parents, Parents::Container);
        assert_eq!(parse("zk://h?parents=persistent")?.1.parents, Parents::Persistent);
        Ok(())
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let bad = [
            "zk://",
            "zk://h?acl=creator",
            "zk://h?acl=all",
            "zk://h?nodes=go",
            "zk://h?parents=none",
            "zk://a@h",
            "zk://h/a//b",
            "zk://h/../b",
            "zk://h/a%20b/c",
            #[cfg(feature = "_tls")]
            "zk://h?ca=/dev/null",
            #[cfg(feature = "_tls")]
            "zookeeper+tls://h?ca=/dev/null&server_name=a",
        ];
        for url in bad {
            assert_eq!(
                parse(url).err().map(|error| error.kind()),
                Some(ErrorKind::Config),
                "{url}"
            );
        }
    }
}
