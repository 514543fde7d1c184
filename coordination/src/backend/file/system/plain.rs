//! What every system with `flock` has.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::state::{Inode, State};

pub(super) fn quiet() -> OFlags {
    OFlags::empty()
}

pub(super) fn inode(directory: &OwnedFd, name: impl Arg) -> Result<Inode, Errno> {
    Ok(fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino)
}

pub(super) fn state(directory: &OwnedFd, name: &str) -> Result<State, Errno> {
    let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(State {
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        accessed: stat.st_atime,
        modified: stat.st_mtime,
        changed: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or_default()),
    })
}

pub(super) fn length(file: &OwnedFd) -> Result<u64, Errno> {
    Ok(u64::try_from(fs::fstat(file)?.st_size).unwrap_or_default())
}

pub(super) fn sync_data(file: &OwnedFd) -> Result<(), Errno> {
    sync(file)
}

/// On macOS `fsync` leaves the data in the disk's own cache, where a loss of power may take them. `F_FULLFSYNC` does not. A file
/// system that does not know it fails: the promise of `durable=true` could not be kept there.
#[cfg(target_vendor = "apple")]
pub(super) fn sync(file: &OwnedFd) -> Result<(), Errno> {
    fs::fcntl_fullfsync(file)
}

#[cfg(not(target_vendor = "apple"))]
pub(super) fn sync(file: &OwnedFd) -> Result<(), Errno> {
    fs::fsync(file)
}

/// Other systems reserve space only by making the file longer.
pub(super) fn reserve(_file: &OwnedFd, _from: u64, _length: u64) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

pub(super) fn punch(_file: &OwnedFd, _from: u64, _length: u64) -> bool {
    false
}

pub(super) fn notifies() -> bool {
    false
}

/// That of macOS does unless it was made otherwise, and that of FreeBSD can.
pub(super) fn folds_case() -> bool {
    true
}

#[cfg(not(linux_kernel))]
pub(super) fn network_name(directory: &OwnedFd) -> Result<Option<String>, Errno> {
    /// `MNT_LOCAL` of `sys/mount.h`: the file system is on a disk of this host.
    const LOCAL: u64 = 0x1000;
    let system = fs::fstatfs(directory)?;
    let bytes = system.f_fstypename.iter().map(|byte| *byte as u8);
    let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8_lossy(&name).into_owned();
    let is_local = u64::from(system.f_flags) & LOCAL != 0;
    Ok((!is_local || !is_of_one_host(&name)).then_some(name))
}

/// Whether a file system with this name is one that only this host writes to. A program (FUSE) or another host (9P, virtiofs) may
/// offer anything as a local disk: FreeBSD's 9P says that it is local, and its locks are those of one guest.
#[cfg(any(not(linux_kernel), test))]
fn is_of_one_host(name: &str) -> bool {
    const KNOWN: [&str; 9] =
        ["apfs", "hfs", "ufs", "zfs", "tmpfs", "nullfs", "msdos", "msdosfs", "exfat"];
    KNOWN.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::is_of_one_host;

    #[test]
    fn only_file_systems_that_are_known_count_as_those_of_one_host() {
        assert!(["apfs", "ufs", "zfs"].iter().all(|name| is_of_one_host(name)));
        for name in ["p9fs", "fusefs", "osxfuse", "virtiofs", "AppleVirtIOFS", "nfs", "smbfs", ""] {
            assert!(!is_of_one_host(name), "{name}");
        }
    }
}
