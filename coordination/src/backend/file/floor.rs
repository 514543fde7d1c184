//! The floor: a number for the whole namespace, above which the numbers of a new queue file begin. If a queue's file was removed
//! and is created again, the floor makes its numbers go on rising; see [`prune`](super::prune).
//!
//! The floor is stored in a file of its own, next to the files of the queues. Pruning raises the floor, and pruning may be used to
//! free space on a full disk. So raising must need no space: this file is created together with the directory, and only overwritten
//! later. Each heartbeat of a session checks this file. If somebody has removed it, the heartbeat creates it again, with a number
//! that is at least as high as before.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, FlockOperation};

use super::directory::{Directory, inode};
use super::error::storage;
use super::header::{self, number};
use super::liveness::lock_named;
use super::system::{self, Inode};
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, Result};

/// The name of the floor's file. No queue's file can have this name, because the name of a queue's file begins with a kind and a
/// dot.
const FLOOR: &str = "floor";
/// The largest length of the floor's file, in bytes.
const LENGTH: usize = 64;
/// How often the file is read again if its text is not valid: another process may be writing it at that moment.
const TRIES: usize = 20;

/// The floor as this process knows it.
#[derive(Default)]
pub(super) struct Floor {
    /// The highest number that this process has read or written so far. This process still knows the number if somebody removes the
    /// file.
    known: AtomicU64,
}

/// The floor's file, locked by this process: no other process changes it until this is dropped.
pub(super) struct Raising<'a> {
    floor: &'a Floor,
    file: OwnedFd,
    inode: Inode,
    /// The number that is in the file.
    written: u64,
}

impl Floor {
    /// Reads the file, and returns the number above which new queues begin.
    pub(super) fn read(&self, directory: &Directory) -> Result<u64> {
        self.look(directory)?;
        Ok(self.known())
    }

    /// Makes sure that the file exists, and that programs that clean up temporary files do not take it for unused.
    ///
    /// If the file is missing, it is created with the clock's time. The numbers of queues are taken from the clock too, so all
    /// numbers that were given before are below the floor, even if the clock is set back later.
    pub(super) fn keep(&self, directory: &Directory, durable: bool) -> Result<()> {
        directory.keep(FLOOR)?;
        if self.look(directory)?.is_some() {
            return Ok(());
        }
        match self.lock(directory)? {
            Some(mut raising) => raising.to(1, directory, durable),
            // Another process has the file locked, and is creating it.
            None => Ok(()),
        }
    }

    /// Locks the file. While it is locked, no other process prunes. `None`: another process has it locked.
    pub(super) fn lock(&self, directory: &Directory) -> Result<Option<Raising<'_>>> {
        let Some(file) = lock_named(directory, FLOOR)? else { return Ok(None) };
        // Made before the steps below: if one of them fails, the drop of `raising` unlocks the file.
        let mut raising = Raising { floor: self, file, inode: 0, written: 0 };
        raising.inode =
            inode(&raising.file).map_err(|errno| storage("stat", directory.path(), errno))?;
        raising.written = self.look_at(directory, &raising.file)?.unwrap_or_default();
        Ok(Some(raising))
    }

    /// Reads the file and remembers its number in `known`. `None`: there is no file, or no valid number in it.
    fn look(&self, directory: &Directory) -> Result<Option<u64>> {
        let Some(file) = directory.file_to_probe(FLOOR)? else { return Ok(None) };
        let mut tries = (0..TRIES).map(|_| self.look_at(directory, &file));
        tries.find_map(Result::transpose).transpose()
    }

    /// Reads the open file once. `None`: its text is not valid, because another process is writing it, or because the power failed
    /// while it was written.
    fn look_at(&self, directory: &Directory, file: &OwnedFd) -> Result<Option<u64>> {
        let mut text = [0; LENGTH];
        let read = rustix::io::pread(file, &mut text, 0);
        let length = read.map_err(|errno| storage("read", &directory.path().join(FLOOR), errno))?;
        let text = str::from_utf8(text.get(..length).unwrap_or_default()).ok();
        let last = text.and_then(header::unseal).and_then(|text| text.strip_prefix("floor "));
        let last = last.and_then(number);
        self.known.fetch_max(last.unwrap_or_default(), Ordering::Relaxed);
        Ok(last)
    }

    /// The highest number that this process has read or written so far.
    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}

impl Raising<'_> {
    /// Raises the floor to at least the number `last`.
    ///
    /// # Errors
    ///
    /// * `Unavailable`: somebody has removed the file since it was locked.
    pub(super) fn to(&mut self, last: u64, directory: &Directory, durable: bool) -> Result<()> {
        if directory.inode(FLOOR)? != Some(self.inode) {
            let message = format!("{} was removed", directory.path().join(FLOOR).display());
            return Err(Error::new(ErrorKind::Unavailable, "write", message));
        }
        let last = last.max(self.floor.known());
        if last <= self.written {
            return Ok(());
        }
        // The floor is raised to the clock's time, even if `last` is lower. The last numbers of most queues are below the clock's
        // time, so this one write of the floor is enough for many removals.
        let last = last.max(unix_micros());
        let mut line = String::new();
        header::sealed(&mut line, |line| line.push_str(&format!("floor {last:020}")));
        let failed = |errno| storage("write", &directory.path().join(FLOOR), errno);
        rustix::io::pwrite(&self.file, line.as_bytes(), 0).map_err(failed)?;
        if durable {
            system::sync(&self.file).map_err(failed)?;
            directory.sync()?;
        }
        self.written = last;
        self.floor.known.fetch_max(last, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Raising<'_> {
    fn drop(&mut self) {
        // Unlocks explicitly. Closing the file would not be enough: a child process that was forked while the file was locked has a
        // copy of the descriptor, and the lock lasts as long as any copy is open.
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::super::tests::store;
    use super::*;

    /// A program that cleans up temporary files removes the file, and the clock is set back. The file that is then created again
    /// must have a number that is at least as high as before.
    #[test]
    fn a_floor_that_was_removed_comes_again_and_is_no_lower() {
        let directory = TempDir::new().expect("a directory");
        let (one, other) = (store(directory.path()), store(directory.path()));
        let path = directory.path().join("test/queues").join(FLOOR);
        let later = unix_micros() + 1_000_000_000;
        let keep = || other.floor.keep(&other.queues, false).expect("the disk works");
        {
            let mut raising = one.floor.lock(&one.queues).expect("the disk works").expect("free");
            raising.to(later, &one.queues, false).expect("the disk works");
            keep();
            fs::remove_file(&path).expect("it was made with the directory");
            let told = raising.to(later, &one.queues, false).expect_err("it is gone");
            assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
        }
        assert_eq!(other.floor.read(&other.queues).expect("the disk works"), later);
        keep();
        let new = store(directory.path());
        assert_eq!(new.floor.read(&new.queues).expect("the disk works"), later);
    }

    #[test]
    fn a_child_that_was_forked_meanwhile_keeps_nobody_from_raising_it() {
        let directory = TempDir::new().expect("a directory");
        let (one, other) = (store(directory.path()), store(directory.path()));
        let raising = one.floor.lock(&one.queues).expect("the disk works").expect("free");
        let _copy = rustix::io::fcntl_dupfd_cloexec(&raising.file, 0).expect("one more is free");
        drop(raising);
        assert!(other.floor.lock(&other.queues).expect("the disk works").is_some());
    }
}
