//! Translates errors of the operating system into our errors.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::error::{Error, ErrorKind};

/// Whether this error says that no file descriptor is left, for the process or for the machine. If so, the caller closes idle files
/// and tries again.
pub(super) fn is_for_want_of_descriptors(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    cause.and_then(Errno::from_io_error).is_some_and(wants_descriptors)
}

/// Whether this error number says that no file descriptor is left, for the process or for the machine.
pub(super) fn wants_descriptors(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// The error for a failed system call on `path`.
pub(super) fn storage(operation: &'static str, path: &Path, errno: Errno) -> Error {
    let errno = of_a_link(errno, cfg!(target_os = "freebsd"));
    let kind = match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP => ErrorKind::Permission,
        Errno::NOENT | Errno::NOTDIR => ErrorKind::Config,
        _ => ErrorKind::Storage,
    };
    let message = match errno {
        Errno::LOOP => format!("{} is a symbolic link, which is refused", path.display()),
        _ => format!("{}: {errno}", path.display()),
    };
    Error::new(kind, operation, message).with_source(io::Error::from(errno))
}

/// The error number that other systems have for what this one says: FreeBSD refuses a symbolic link with a number of its own.
fn of_a_link(errno: Errno, is_freebsd: bool) -> Errno {
    match errno {
        Errno::MLINK if is_freebsd => Errno::LOOP,
        errno => errno,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbolic_link_is_refused_in_the_same_words_everywhere() {
        assert_eq!(of_a_link(Errno::MLINK, true), Errno::LOOP);
        for errno in [Errno::MLINK, Errno::LOOP] {
            assert_eq!(
                of_a_link(errno, false),
                errno,
                "a file with too many names is another matter"
            );
        }
        let error = storage("open", Path::new("/x"), Errno::LOOP);
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.to_string().contains("/x is a symbolic link"), "{error}");
    }
}
