//! What differs from system to system: Linux has calls that others lack.
//!
//! [`linux`] uses these calls. [`plain`] has the same functions, made of what every system with `flock` has. In our own tests
//! `plain` can be had on Linux too, so that all checks run with either of them: see [`is_plain`].

#[cfg(linux_kernel)]
mod linux;
mod plain;
mod state;

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::path::Arg;

pub(super) use self::state::{Inode, State};
#[cfg(linux_kernel)]
use crate::env::is_plain;
use crate::key;

/// Declares functions that both modules have.
macro_rules! calls {
    ($($(#[$doc:meta])+ fn $name:ident($($argument:ident: $type:ty),*) -> $returned:ty;)+) => {$(
        $(#[$doc])+
        pub(super) fn $name($($argument: $type),*) -> $returned {
            #[cfg(linux_kernel)]
            if !is_plain() {
                return linux::$name($($argument),*);
            }
            plain::$name($($argument),*)
        }
    )+};
}

calls! {
    /// A flag for files of our own user, so that reads do not update the file's access time; empty, if there is no such flag. The
    /// system refuses this flag to users who do not own the file.
    fn quiet() -> OFlags;

    /// What is known of the file with this name.
    fn state(directory: &OwnedFd, name: &str) -> Result<State, Errno>;

    /// The length of an open file.
    fn length(file: &OwnedFd) -> Result<u64, Errno>;

    /// Waits until the disk has what was written to this file, as far as a reader needs it.
    fn sync_data(file: &OwnedFd) -> Result<(), Errno>;

    /// Waits until the disk has what was written to this file or directory.
    fn sync(file: &OwnedFd) -> Result<(), Errno>;

    /// Reserves space on the disk for `length` bytes from `from` on. The file's length stays the same.
    fn reserve(file: &OwnedFd, from: u64, length: u64) -> Result<(), Errno>;

    /// Gives the space of these bytes, which nobody reads any more, back to the disk. The file's length stays the same. Returns
    /// false if the space stays in use.
    fn punch(file: &OwnedFd, from: u64, length: u64) -> bool;

    /// Whether waiters are told of changes. If not, they poll.
    fn notifies() -> bool;

    /// Whether names that differ only in case may lead to one file, so that [`file_name`] has to keep them apart.
    fn folds_case() -> bool;
}

/// The identity of the file with this name.
pub(super) fn inode(directory: &OwnedFd, name: impl Arg) -> Result<Inode, Errno> {
    #[cfg(linux_kernel)]
    if !is_plain() {
        return linux::inode(directory, name);
    }
    plain::inode(directory, name)
}

/// The name of the network file system on which this directory is; `None`: the file system is local.
pub(super) fn network_name(directory: &OwnedFd) -> Result<Option<String>, Errno> {
    #[cfg(linux_kernel)]
    return linux::network_name(directory);
    #[cfg(not(linux_kernel))]
    plain::network_name(directory)
}

/// The name of the file or directory for this name of a user. Different names have different files, also on a file system that does
/// not distinguish letters by their case.
pub(super) fn file_name(name: &str) -> String {
    if folds_case() { key::encode_folded(name) } else { key::encode(name) }
}
