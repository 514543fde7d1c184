//! What only Linux has.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::state::{Inode, State};

pub(super) fn quiet() -> OFlags {
    OFlags::NOATIME
}

pub(super) fn inode(directory: &OwnedFd, name: impl Arg) -> Result<Inode, Errno> {
    // Asks the kernel only for the inode number. If a program asks for a file's times, the kernel stores the time of the next
    // change with a finer resolution, and so the next write to the file takes longer.
    let stat = fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO)?;
    Ok(stat.stx_ino)
}

pub(super) fn state(directory: &OwnedFd, name: &str) -> Result<State, Errno> {
    let times = StatxFlags::ATIME | StatxFlags::MTIME | StatxFlags::CTIME;
    let what = StatxFlags::INO | StatxFlags::SIZE | times;
    let stat = fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, what)?;
    Ok(State {
        inode: stat.stx_ino,
        size: stat.stx_size,
        accessed: stat.stx_atime.tv_sec,
        modified: stat.stx_mtime.tv_sec,
        changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
    })
}

pub(super) fn length(file: &OwnedFd) -> Result<u64, Errno> {
    // Asks the kernel only for the size: if it were asked for times, later writes would take longer. See `inode`.
    let stat = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE)?;
    Ok(stat.stx_size)
}

pub(super) fn sync_data(file: &OwnedFd) -> Result<(), Errno> {
    fs::fdatasync(file)
}

pub(super) fn sync(file: &OwnedFd) -> Result<(), Errno> {
    fs::fsync(file)
}

pub(super) fn reserve(file: &OwnedFd, from: u64, length: u64) -> Result<(), Errno> {
    fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, length)
}

/// Always true: if the file system cannot do it, the space stays in use until the log is moved to the file's front.
pub(super) fn punch(file: &OwnedFd, from: u64, length: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fs::fallocate(file, hole, from, length);
    true
}

pub(super) fn notifies() -> bool {
    true
}

/// Always false. A directory of ext4 or F2FS can be made to fold case; there a second name is the error `Collision`.
pub(super) fn folds_case() -> bool {
    false
}

pub(super) fn network_name(directory: &OwnedFd) -> Result<Option<String>, Errno> {
    // The magic number of a file system has 32 bits, but the field `f_type` may be wider.
    let magic = fs::fstatfs(directory)?.f_type as u64 & 0xffff_ffff;
    Ok(name_of(magic).map(str::to_owned))
}

/// The file systems on which `flock` or inotify works differently from local ones, each with its magic number (`linux/magic.h`) and
/// its name.
const NETWORK: [(u64, &str); 12] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x517b, "SMB"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
];

fn name_of(magic: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_name() {
        for (magic, name) in NETWORK {
            assert_eq!(name_of(magic), Some(name));
        }
        let ext4 = 0xef53;
        assert_eq!(name_of(ext4), None);
    }
}
