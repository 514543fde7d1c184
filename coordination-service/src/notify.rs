//! What a supervisor such as systemd is told, if it has asked for that by `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// How long a supervisor that reads nothing holds us up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests are answered.
pub(crate) fn ready() {
    tell(b"READY=1");
}

/// The end has begun.
pub(crate) fn stopping() {
    tell(b"STOPPING=1");
}

fn tell(state: &[u8]) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return;
    };
    if let Err(error) = send(&path, state) {
        tracing::warn!(%error, "the supervisor was not told");
    }
}

/// One datagram, as sd_notify(3) has it; a name that begins with `@` is in Linux' abstract namespace.
fn send(path: &OsStr, state: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    #[cfg(target_os = "linux")]
    if let Some(name) = path.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;

        return socket.send_to_addr(state, &SocketAddr::from_abstract_name(name)?).map(drop);
    }
    socket.send_to(state, path).map(drop)
}
