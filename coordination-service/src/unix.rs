//! A Unix socket: for processes of this host, of our user and of our group.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Who may connect: our user and our group.
const MODE: u32 = 0o660;

/// The file of a socket, which is removed when this is dropped.
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and number of what we have made: another instance may have taken the path over.
    made: (u64, u64),
}

/// Listens at this path. A socket that nobody listens at any more, as after a crash, is replaced. `tag` is ours alone.
pub(crate) fn bind(path: &Path, tag: &str) -> io::Result<(UnixListener, Socket)> {
    refuse_what_is_there(path)?;
    // Made where nobody else may look, so that nobody connects before the mode is set.
    let room = path.with_file_name(format!(".{tag}"));
    DirBuilder::new().mode(0o700).create(&room)?;
    let bound = bind_within(&room, path);
    let _ = fs::remove_dir_all(&room);
    bound
}

fn bind_within(room: &Path, path: &Path) -> io::Result<(UnixListener, Socket)> {
    let place = room.join("s");
    let listener = UnixListener::bind(&place)?;
    fs::set_permissions(&place, Permissions::from_mode(MODE))?;
    let made = id(&place)?;
    fs::rename(&place, path)?;
    Ok((listener, Socket { path: path.to_owned(), made }))
}

/// An error if somebody listens there, or if it is no socket.
fn refuse_what_is_there(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "there is a file of another kind",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "somebody listens there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}

impl Drop for Socket {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|there| there == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
