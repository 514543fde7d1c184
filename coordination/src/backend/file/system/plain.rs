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
    let system = fs::fstatfs(directory)?;
    let bytes = system.f_fstypename.iter().map(|byte| *byte as u8);
    let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    Ok(network_of(&String::from_utf8_lossy(&name), u64::from(system.f_flags)).map(str::to_owned))
}

/// `MNT_LOCAL` of `sys/mount.h`: the file system is on a disk of this host.
#[cfg(any(not(linux_kernel), test))]
const LOCAL: u64 = 0x1000;

/// The name of a mounted file system with this name and these flags, unless only this host writes to it.
///
/// A program (FUSE) or another host (9P, virtiofs) may offer anything as a local disk: FreeBSD's 9P says that it is local, and its
/// locks are those of one guest. So only file systems on the list are taken for local. FAT and exFAT are not on it: an empty file may
/// get another inode number there when it is first written to. Neither is nullfs, which says of any file system below it that it is local.
#[cfg(any(not(linux_kernel), test))]
fn network_of(name: &str, flags: u64) -> Option<&str> {
    const KNOWN: [&str; 5] = ["apfs", "hfs", "ufs", "zfs", "tmpfs"];
    let is_local = flags & LOCAL != 0 && KNOWN.contains(&name);
    (!is_local).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::{LOCAL, network_of};

    #[test]
    fn only_known_file_systems_on_a_disk_of_this_host_are_local() {
        // Read-only and without set-user-ID, besides.
        let others = 0x9;
        for name in ["apfs", "ufs", "zfs"] {
            assert_eq!(network_of(name, LOCAL | others), None, "{name}");
            assert_eq!(network_of(name, others), Some(name));
        }
        let odd = [
            "p9fs",
            "fusefs",
            "osxfuse",
            "virtiofs",
            "AppleVirtIOFS",
            "nfs",
            "exfat",
            "nullfs",
            "",
        ];
        for name in odd {
            assert_eq!(network_of(name, LOCAL), Some(name));
        }
    }
}
