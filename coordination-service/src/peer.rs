//! Where requests come from.

use std::fmt;
use std::net::SocketAddr;

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    Address(SocketAddr),
    /// A process of this host, which runs as this user.
    User(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(user) => write!(f, "uid:{user}"),
        }
    }
}
