//! Sockets that have a path: those by which the programs of one host reach each other.

use std::io;
use std::path::Path;

#[cfg(unix)]
use tokio::net::UnixStream as Socket;

/// Stands for a socket that there is not.
#[cfg(windows)]
use tokio::net::TcpStream as Socket;

/// What the error says where there are none.
pub(crate) const NONE: &str = "this system has no sockets with a path";

#[cfg(unix)]
pub(crate) async fn connect(path: &Path) -> io::Result<Socket> {
    Socket::connect(path).await
}

/// Windows has such sockets, but tokio does not.
#[cfg(windows)]
pub(crate) async fn connect(_path: &Path) -> io::Result<Socket> {
    Err(io::Error::new(io::ErrorKind::Unsupported, NONE))
}
