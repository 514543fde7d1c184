//! TCP keepalive: the operating system finds out whether the other end of a silent connection is still there.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// Has the operating system send a probe if the connection was idle for this time. With a long heartbeat interval a connection is
/// idle for long, and a firewall on the way might drop it without a word. The next call, for instance a release, would then wait
/// until nobody has answered it in time.
pub(crate) fn probe_if_silent(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    // The other systems have one time for all connections.
    #[cfg(not(any(target_os = "haiku", target_os = "nto", target_os = "openbsd")))]
    sockopt::set_tcp_keepidle(stream, idle)?;
    #[cfg(any(target_os = "haiku", target_os = "nto", target_os = "openbsd"))]
    let _ = idle;
    Ok(())
}
