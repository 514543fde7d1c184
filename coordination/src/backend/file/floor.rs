//! The floor: the number above which the numbers of a new queue file begin. It keeps numbers rising in a queue whose file was
//! removed; see [`prune`](super::prune).
//!
//! The number is in a file of its own, next to the files of the queues. This file is created with the directory, so that raising
//! the floor needs no space on the disk: on a full disk, other files are removed to get space. Each heartbeat of a session checks
//! the file: if somebody has removed it, it is created again, with a number that is no lower.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, FlockOperation};

use super::directory::{Directory, Inode, inode};
use super::error::storage;
use super::header::{self, number};
use super::liveness::lock_named;
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, Result};

/// The name of the file. No queue's file has this name, as the name of a queue's file begins with a kind and a dot.
const FLOOR: &str = "floor";
/// The largest length of the file, in bytes.
const LENGTH: usize = 64;
/// How often the file is read again if another process may just be writing it.
const TRIES: usize = 20;

/// The floor as this process knows it.
#[derive(Default)]
pub(super) struct Floor {
    /// The highest number that was read or written so far. It is kept if somebody removes the file.
    known: AtomicU64,
}

/// The floor's file, locked: nobody else changes it until this is dropped.
pub(super) struct Raising<'a> {
    floor: &'a Floor,
    file: OwnedFd,
    inode: Inode,
    /// The number in the file.
    written: u64,
}

impl Floor {
    /// Reads the file, and returns the number above which new queues begin.
    pub(super) fn read(&self, directory: &Directory) -> Result<u64> {
        self.look(directory)?;
        Ok(self.known())
    }

    /// Makes sure that the file exists, and does not look unused to programs that clean up temporary files.
    ///
    /// A new file gets the clock's time: all numbers that were given before are below that, even if the clock is set back later.
    pub(super) fn keep(&self, directory: &Directory, durable: bool) -> Result<()> {
        directory.keep(FLOOR)?;
        if self.look(directory)?.is_some() {
            return Ok(());
        }
        match self.lock(directory)? {
            Some(mut raising) => raising.to(1, directory, durable),
            // Another process is making the file.
            None => Ok(()),
        }
    }

    /// Locks the file, so that no other process prunes as long as it is locked. `None`: another process has it locked.
    pub(super) fn lock(&self, directory: &Directory) -> Result<Option<Raising<'_>>> {
        let Some(file) = lock_named(directory, FLOOR)? else { return Ok(None) };
        // From here on, dropping `raising` unlocks the file.
        let mut raising = Raising { floor: self, file, inode: 0, written: 0 };
        raising.inode =
            inode(&raising.file).map_err(|errno| storage("stat", directory.path(), errno))?;
        raising.written = self.look_at(directory, &raising.file)?.unwrap_or_default();
        Ok(Some(raising))
    }

    /// Reads the file and remembers its number; `None`: there is no file, or no valid number in it.
    fn look(&self, directory: &Directory) -> Result<Option<u64>> {
        let Some(file) = directory.file_to_probe(FLOOR)? else { return Ok(None) };
        let mut tries = (0..TRIES).map(|_| self.look_at(directory, &file));
        tries.find_map(Result::transpose).transpose()
    }

    /// Reads an open file once. `None`: another process is writing it, or the power failed while it was written.
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

    /// The highest number that was read or written so far.
    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}

impl Raising<'_> {
    /// Raises the floor to at least this number.
    ///
    /// # Errors
    ///
    /// * `Unavailable`: the file was removed since it was locked.
    pub(super) fn to(&mut self, last: u64, directory: &Directory, durable: bool) -> Result<()> {
        if directory.inode(FLOOR)? != Some(self.inode) {
            let message = format!("{} was removed", directory.path().join(FLOOR).display());
            return Err(Error::new(ErrorKind::Unavailable, "write", message));
        }
        let last = last.max(self.floor.known());
        if last <= self.written {
            return Ok(());
        }
        // The floor is raised to the clock's time, which is above the last numbers of most queues: so one write of the file is
        // enough for many removals.
        let last = last.max(unix_micros());
        let mut line = String::new();
        header::sealed(&mut line, |line| line.push_str(&format!("floor {last:020}")));
        let failed = |errno| storage("write", &directory.path().join(FLOOR), errno);
        rustix::io::pwrite(&self.file, line.as_bytes(), 0).map_err(failed)?;
        if durable {
            fs::fsync(&self.file).map_err(failed)?;
            directory.sync()?;
        }
        self.written = last;
        self.floor.known.fetch_max(last, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Raising<'_> {
    fn drop(&mut self) {
        // Unlocks explicitly, not by closing: a child process that was forked while the file was locked has a copy of the
        // descriptor.
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::super::tests::store;
    use super::*;

    /// A program that cleans up temporary files has removed the file, and the clock was set back since.
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
