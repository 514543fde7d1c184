//! The handle of a lock that a process in the background holds: the path of a socket. Whoever connects there asks for the release.
//!
//! The socket is in a directory that only our user may enter. Its file is removed when there is nothing to release any more. If
//! the file is there and nobody listens, the holder was killed, and the lock is lost. Such a file stays for as long as whom the lock was for may
//! ask: its name says who that is. Beside it is a [note](NOTE) of what is held, for whoever would wait for that on behalf of the same process.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixStream as Socket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::alive::Process;
use super::around::Held;
use super::holder::{named, word};
use super::watch::new_mark;
use crate::args::Release;
use crate::exit::{self, Failure, Outcome, printable};

/// How long whoever asks waits for the answer: longer than a store that is away is tried with the usual lease.
const ANSWER: Duration = Duration::from_secs(60);
/// How long whoever has asked may take to read the answer.
const READING: Duration = Duration::from_secs(1);
/// From one try to the next, where no descriptor is left.
const AGAIN: Duration = Duration::from_millis(200);
/// A longer directory leaves no room for our name: the path of a socket has 107 bytes at most.
const LONGEST: usize = 46;
/// What the name of the note has after that of the socket.
const NOTE: &str = "held";
const NOTHING: &str =
    "nothing is held by this handle any more: it was released before, or whom it was for has ended";
const ENDED: &str = "the lock was lost: its holder was ended";
/// Where the kernel lists sockets, with the paths of those that are bound to one, also when the file is gone.
const SOCKETS: &str = "/proc/net/unix";
/// Longer than it takes from the removal of the file to the end of the socket, where that is in order.
const CLOSING: Duration = Duration::from_secs(3);

/// What whoever asks for the release is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The store has confirmed it.
    Released,
    /// It was lost before, for this reason.
    Lost(String),
    /// The store has not confirmed it, for this reason.
    Unconfirmed(String),
    /// Another has asked before.
    Again,
}

/// The holder's side of it. The file is removed when this is dropped, and left where it is when the holder is killed.
pub(super) struct Handle {
    path: PathBuf,
    listener: UnixListener,
}

impl Handle {
    /// Of what is held, and for whom.
    pub(super) fn new(whom: &Process, held: &[Held]) -> io::Result<Self> {
        let directory = directory()?;
        sweep(&directory);
        let path = directory.join(format!("{}-{}", new_mark(), word(whom)));
        let listener = UnixListener::bind(&path)?;
        // Without it nobody is told that he waits for himself.
        let note = serde_json::to_vec(held).unwrap_or_default();
        let _ = fs::write(path.with_extension(NOTE), note);
        Ok(Self { path, listener })
    }

    /// What users call it.
    pub(super) fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Waits for somebody who asks for the release.
    pub(super) async fn asked(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Answers the one who has asked, and whoever else has meanwhile.
    pub(super) async fn close(self, stream: UnixStream, answer: &Answer) {
        // First, so that nobody comes who is not answered.
        remove(&self.path);
        tell(stream, answer).await;
        while let Ok(Ok((stream, _))) = timeout(Duration::ZERO, self.listener.accept()).await {
            tell(stream, &Answer::Again).await;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The socket's file last: where that was not reached, both are swept.
fn remove(path: &Path) {
    let _ = fs::remove_file(path.with_extension(NOTE));
    let _ = fs::remove_file(path);
}

/// The [`word`] that says for whom the lock is, in the path of a handle or of its note; `None`: it is neither.
fn word_in(path: &Path) -> Option<&str> {
    path.file_stem()?.to_str()?.splitn(3, '-').nth(2)
}

/// Removes what killed holders have left, if whom they held for has ended too: then nobody is to learn of the loss any more.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path().with_extension("");
        let has_ended = word_in(&path).is_some_and(|word| named(word.as_ref()).is_none());
        if has_ended && is_left(&path) {
            remove(&path);
        }
    }
}

/// Whether no holder listens there. To connect is to ask for the release; so this tries another kind of socket, which a holder's never
/// accepts: the kernel tells that from a file which nobody has open.
fn is_left(path: &Path) -> bool {
    match UnixDatagram::unbound().and_then(|socket| socket.connect(path)) {
        // That is said of what is no socket as well.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => is_socket(path),
        Err(error) => error.kind() == ErrorKind::NotFound,
        Ok(()) => false,
    }
}

/// The handles of what is held for this process, and what that is, as far as is known. The store knows whether it still is.
pub(super) fn held_for(whom: &Process) -> Vec<(PathBuf, Vec<Held>)> {
    let Ok(directory) = directory() else { return Vec::new() };
    let whom = word(whom);
    let is_note = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == NOTE)
            && word_in(path) == Some(whom.as_str())
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let notes = entries.map(|entry| entry.path()).filter(is_note);
    let read = |note: PathBuf| {
        let held = serde_json::from_slice(&fs::read(&note).ok()?).ok()?;
        Some((note.with_extension(""), held))
    };
    notes.filter_map(read).collect()
}

async fn tell(mut stream: UnixStream, answer: &Answer) {
    let line = serde_json::to_string(answer).unwrap_or_default() + "\n";
    // Who has gone does not want to know.
    let _ = timeout(READING, stream.write_all(line.as_bytes())).await;
}

/// A directory of our user's alone.
pub(super) fn directory() -> io::Result<PathBuf> {
    let us = geteuid().as_raw();
    let is_ours = |path: &Path| fs::metadata(path).is_ok_and(|of| of.uid() == us);
    // After `su` it may be another user's.
    let runtime = env::var("XDG_RUNTIME_DIR").ok().filter(|path| {
        let is_fit = path.len() <= LONGEST && !path.contains(char::is_whitespace);
        path.starts_with('/') && is_fit && is_ours(Path::new(path))
    });
    let path = match runtime {
        Some(runtime) => Path::new(&runtime).join("coordination"),
        None => format!("/tmp/coordination-{us}").into(),
    };
    let failed = |kind: ErrorKind, what: &str| {
        let elsewhere = format!(
            "to have it elsewhere, set XDG_RUNTIME_DIR to a directory of yours, in at most {LONGEST} bytes without blanks"
        );
        io::Error::new(kind, format!("{} {what}; {elsewhere}", path.display()))
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(failed(error.kind(), &format!("cannot be made ({error})")));
        }
        _ => {}
    }
    let of = fs::symlink_metadata(&path)?;
    if of.is_dir() && of.uid() == us && of.mode() & 0o077 == 0 {
        return Ok(path);
    }
    Err(failed(ErrorKind::PermissionDenied, "is no directory of our user alone"))
}

/// `coordination release`: ends when the store has confirmed the release.
pub(crate) fn release(asked: &Release) -> Outcome<u8> {
    let socket = Socket::connect(&asked.handle).map_err(|error| nobody(&asked.handle, &error))?;
    let asking = |error: io::Error| Failure::system("cannot ask for the release", &error);
    socket.set_read_timeout(Some(ANSWER)).map_err(asking)?;
    let mut line = String::new();
    match BufReader::new(socket).read_line(&mut line) {
        Ok(1..) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(Failure::new(exit::UNAVAILABLE, "the lock's holder does not answer"));
        }
        // The holder was killed.
        Ok(0) | Err(_) => return Err(Failure::new(exit::LOST, ENDED)),
    }
    match serde_json::from_str::<Answer>(&line) {
        Ok(Answer::Released) => Ok(0),
        Ok(Answer::Lost(why)) => Err(Failure::new(exit::LOST, why)),
        Ok(Answer::Unconfirmed(why)) => {
            let what = format!("the store has not confirmed the release: {why}");
            Err(Failure::new(exit::UNAVAILABLE, what))
        }
        Ok(Answer::Again) => Err(Failure::new(exit::NOBODY, NOTHING)),
        Err(_) => Err(Failure::usage(no_handle(&asked.handle))),
    }
}

/// Why nobody could be asked.
fn nobody(handle: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound if is_cut_off(handle) => {
            Failure::new(exit::UNAVAILABLE, cut_off(handle))
        }
        ErrorKind::NotFound => Failure::new(exit::NOBODY, NOTHING),
        ErrorKind::ConnectionRefused if is_socket(handle) => Failure::new(exit::LOST, ENDED),
        _ => Failure::usage(format!("{}: {error}", no_handle(handle))),
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket())
}

/// Whether a holder still listens whose file others have removed: with the last login of a user goes `$XDG_RUNTIME_DIR`.
fn is_cut_off(handle: &Path) -> bool {
    let begun = Instant::now();
    while fs::read(SOCKETS).is_ok_and(|sockets| has_socket(&sockets, handle)) {
        if begun.elapsed() >= CLOSING {
            return true;
        }
        thread::sleep(AGAIN);
    }
    false
}

fn has_socket(sockets: &[u8], handle: &Path) -> bool {
    let handle = handle.as_os_str().as_bytes();
    let is_it = |line: &[u8]| line.strip_suffix(handle).is_some_and(|rest| rest.ends_with(b" "));
    !handle.is_empty() && sockets.split(|byte| *byte == b'\n').any(is_it)
}

fn cut_off(handle: &Path) -> String {
    let name = handle.file_name().unwrap_or_default().to_string_lossy();
    let holder = name.split('-').next().unwrap_or_default();
    let holder = printable(holder);
    format!(
        "{} was removed, so that its holder, process {holder}, cannot be asked: it holds the lock until whom it is for has ended, or \
         it is killed: kill -KILL {holder}",
        printable(&handle.to_string_lossy())
    )
}

fn no_handle(handle: &Path) -> String {
    format!("{} is no handle of `coordination acquire`", printable(&handle.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_for_whom_it_is() {
        for path in ["/r/coordination/1-2-3-4", "/r/coordination/1-2-3-4.held"] {
            assert_eq!(word_in(Path::new(path)), Some("3-4"));
        }
        for path in ["/r/1-2-3-4/1-2", "/r/1", "/"] {
            assert_eq!(word_in(Path::new(path)), None, "{path}");
        }
    }

    #[tokio::test]
    async fn a_socket_is_left_when_nobody_has_it_open() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("socket");
        assert!(is_left(&path));
        let listener = UnixListener::bind(&path).expect("there is room");
        assert!(!is_left(&path));
        let asked = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(asked.is_err(), "nothing was asked for");
        drop(listener);
        // A child that another check starts at this moment has it open until it executes its program.
        let left = async {
            while !is_left(&path) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(Duration::from_secs(10), left).await.is_ok(), "it stays open");
        fs::remove_file(&path).and_then(|()| fs::write(&path, "")).expect("there is room");
        assert!(!is_left(&path), "a file of somebody else");
    }

    #[test]
    fn a_socket_is_found_by_its_whole_path() {
        let sockets = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 73 /run/user/7/coordination/12-34\n\
            0000: 00000003 00000000 00000000 0001 03 74\n";
        let has = |path: &str| has_socket(sockets, Path::new(path));
        assert!(has("/run/user/7/coordination/12-34"));
        for other in ["/coordination/12-34", "/run/user/7/coordination/12-3", "74x", ""] {
            assert!(!has(other), "{other}");
        }
    }
}
