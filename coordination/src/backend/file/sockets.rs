//! Datagrams by which a process that removes an entry wakes the process whose turn comes by that, and no other.
//!
//! A session that waits has a socket, `sockets/<id>`. Whoever removes an entry finds in the queue's log whose turn comes next. It
//! sends the datagram before it writes the removal, while it has the queue's short lock. The receiver needs that lock to look, so it
//! finds the removal; and a sender that is killed in between has woken somebody for nothing, but keeps nobody waiting.
//!
//! A session without a socket is woken by each change of the queue's file. If the datagram cannot be delivered though there is a
//! socket, the sender changes the times of the file: that wakes all who wait for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::runtime::Handle;

use super::directory::Directory;
use crate::backend::SessionId;
use crate::env;
use crate::panics::{caught, on_purpose};

/// The largest size of a datagram: a number, and the name of a queue's file.
const LARGEST: usize = 512;
/// How long the task that receives datagrams waits before it looks whether its socket was closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after that task has panicked, before it is started again.
const PAUSE: Duration = Duration::from_millis(50);

/// What a datagram says: this entry of the queue with this file is about to go. `None`: datagrams were lost.
pub(super) type Heard<'a> = Option<(&'a str, u64)>;

/// The sockets of a namespace.
pub(super) struct Sockets {
    /// `None`: there can be none.
    directory: Option<Directory>,
    /// The sockets of this process's sessions.
    own: Mutex<HashMap<SessionId, Arc<UnixDatagram>>>,
    /// The socket that sends, which has no name.
    sender: Mutex<Option<Arc<net::UnixDatagram>>>,
}

impl Sockets {
    pub(super) fn new(root: &Directory) -> Self {
        let directory = root.subdirectory("sockets");
        let directory = directory.inspect_err(|error| tracing::debug!(%error, "no sockets"));
        Self { directory: directory.ok(), own: Mutex::default(), sender: Mutex::default() }
    }

    /// Opens the session's socket, unless it is open. From then on `heard` is called, on the session's runtime, for each datagram.
    /// Returns false if the system grants no socket.
    pub(super) fn open(
        &self,
        session: SessionId,
        heard: impl Fn(Heard<'_>) + Clone + Send + Sync + 'static,
    ) -> bool {
        let mut own = self.own();
        if own.contains_key(&session) {
            return true;
        }
        match self.bind(session) {
            Ok(socket) => {
                let socket = Arc::new(socket);
                env::spawn(&Handle::current(), keep_receiving(Arc::downgrade(&socket), heard));
                own.insert(session, socket);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "no socket to wait at");
                false
            }
        }
    }

    fn bind(&self, session: SessionId) -> io::Result<UnixDatagram> {
        let Some(directory) = &self.directory else { return Err(io::ErrorKind::NotFound.into()) };
        let socket = net::UnixDatagram::bind(address(directory, session))?;
        let opened = socket.set_nonblocking(true).and_then(|()| {
            directory.share_socket(&session.to_string())?;
            UnixDatagram::from_std(socket)
        });
        if opened.is_err() {
            self.remove(session);
        }
        opened
    }

    /// Tells the session that this entry of this queue is about to go. Returns false if that was not delivered to a session that
    /// waits for it.
    pub(super) fn send(&self, session: SessionId, queue: &str, seq: u64) -> bool {
        let Some(directory) = &self.directory else { return false };
        let Ok(sender) = self.sender() else { return false };
        let text = format!("{seq} {queue}");
        match sender.send_to(text.as_bytes(), address(directory, session)) {
            Ok(_) => true,
            Err(error) => waits_for_nothing(&error, &path_of(directory)),
        }
    }

    fn sender(&self) -> io::Result<Arc<net::UnixDatagram>> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            return Ok(Arc::clone(sender));
        }
        let new = net::UnixDatagram::unbound()?;
        new.set_nonblocking(true)?;
        Ok(Arc::clone(sender.insert(Arc::new(new))))
    }

    /// Keeps the socket's file young, so that programs that clean up old files leave it alone. If the file is gone all the same,
    /// closes the socket, and returns true: datagrams may have been lost.
    pub(super) fn has_lost_its_file(&self, session: SessionId) -> bool {
        let (Some(directory), mut own) = (&self.directory, self.own()) else { return false };
        if !own.contains_key(&session) {
            return false;
        }
        let is_gone = matches!(directory.keep(&session.to_string()), Ok(None));
        if is_gone {
            own.remove(&session);
        }
        is_gone
    }

    /// Closes the socket of a session of this process.
    pub(super) fn close(&self, session: SessionId) {
        if self.own().remove(&session).is_some() {
            self.remove(session);
        }
    }

    /// Removes the socket of a session that is over.
    pub(super) fn remove(&self, session: SessionId) {
        // If this fails, a later sweep removes it.
        let _ = self.directory.as_ref().map(|directory| directory.remove(&session.to_string()));
    }

    /// The sessions that have sockets here.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let names = self.directory.as_ref().and_then(|directory| directory.names().ok());
        names.iter().flatten().filter_map(|name| SessionId::parse(name)).collect()
    }

    fn own(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<UnixDatagram>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this error says that the session is over, or does not wait to be told. If it is about to begin, it looks after that.
///
/// A process without `/proc` does not find the directory of the sockets itself, so it does not know whether the session waits.
fn waits_for_nothing(error: &io::Error, directory: &Path) -> bool {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => true,
        io::ErrorKind::NotFound => directory.exists(),
        _ => false,
    }
}

fn address(directory: &Directory, session: SessionId) -> PathBuf {
    path_of(directory).join(session.to_string())
}

/// A short path to the directory. An address has 107 bytes at the most, and the directory's own path may be longer.
fn path_of(directory: &Directory) -> PathBuf {
    format!("/proc/thread-self/fd/{}", directory.handle().as_raw_fd()).into()
}

/// Runs [`receive`], and starts it again whenever it panics. The panic may have lost datagrams.
async fn keep_receiving(socket: Weak<UnixDatagram>, heard: impl Fn(Heard<'_>) + Clone) {
    while caught("watch", receive(Weak::clone(&socket), &heard)).await.is_err() {
        tokio::time::sleep(PAUSE).await;
        heard(None);
    }
}

/// Receives datagrams until the socket is closed.
async fn receive(socket: Weak<UnixDatagram>, heard: &impl Fn(Heard<'_>)) {
    let mut buffer = [0; LARGEST];
    loop {
        let Some(socket) = socket.upgrade() else { return };
        // While this waits, it keeps the socket open. So the wait has a limit.
        let Ok(readable) = tokio::time::timeout(PATIENCE, socket.readable()).await else {
            continue;
        };
        if readable.is_err() {
            return;
        }
        on_purpose("watching");
        while let Ok(length) = socket.try_recv(&mut buffer) {
            let text = buffer.get(..length).and_then(|text| std::str::from_utf8(text).ok());
            // A datagram that we did not send means nothing.
            if let Some((seq, queue)) = text.and_then(|text| text.split_once(' '))
                && let Ok(seq) = seq.parse()
            {
                heard(Some((queue, seq)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn who_does_not_find_the_sockets_does_not_know_who_waits() {
        let directory = TempDir::new().expect("a directory");
        let (there, missing) = (directory.path(), directory.path().join("missing"));
        let is_over =
            |kind: io::ErrorKind, at: &Path| waits_for_nothing(&io::Error::from(kind), at);
        assert!(is_over(io::ErrorKind::NotFound, there), "it has no socket");
        assert!(is_over(io::ErrorKind::ConnectionRefused, there), "its process was killed");
        assert!(!is_over(io::ErrorKind::NotFound, &missing));
        assert!(!is_over(io::ErrorKind::WouldBlock, there), "it has not read the last ones");
    }
}
