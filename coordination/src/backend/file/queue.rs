//! One queue: a file with a log, which is read and appended to under a short `flock`.

mod compact;
mod room;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{self, AtFlags, FlockOperation, StatxFlags};
use rustix::io::Errno;

use super::directory::{Directory, Inode};
use super::error::storage;
use super::floor::Floor;
use super::header::{self, HEADER, Header};
use super::log::{self, Log, Record, Removed, Written};
use crate::backend::{Beside, Data, Mode};
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;

/// The size of one read, and the size that a file is given in advance: a write within that size costs the file system less than one
/// that makes the file grow. It is a part of a memory page, so that other processes see such a write as a whole or not at all.
const PAGE: usize = 1024;
/// How much space is reserved on the disk at a time, for the lines with which entries will leave.
const BLOCK: u64 = 4096;
/// How large the buffers of an open file may stay between two steps.
const KEPT: usize = 16 * PAGE;
/// How often the short lock is tried before `lock` returns `None`. The lock is held for microseconds, unless the process that holds
/// it is stopped by the system.
const SPINS: usize = 20;

/// A queue's open file, and what was read from it so far.
pub(super) struct QueueFile {
    file: OwnedFd,
    inode: Inode,
    /// The number above which a new file's numbers begin.
    floor: u64,
    /// The file's name, in the form that system calls take, as it is needed with every entry.
    name: CString,
    path: PathBuf,
    /// The header as it was last read or written; empty: everything has to be read anew.
    header: String,
    generation: u64,
    log: Log,
    /// The line after the header.
    name_line: String,
    /// The offset up to which the log was read.
    read_to: u64,
    /// The offset where the log begins now.
    start: u64,
    /// The length from which on the log may be worth shortening.
    long_at: u64,
    /// The size of the blocks in which the file system gives space.
    block: u64,
    /// The offset up to which space is reserved on the disk; zero: only for the block in which the log ends.
    room_to: u64,
    /// With `durable`: new data must be on the disk before the data that they replace are removed.
    durable: bool,
    buffer: Vec<u8>,
    line: String,
}

/// The queue under its short lock: nobody else changes it until this is dropped.
pub(super) struct Locked<'a> {
    queue: &'a mut QueueFile,
}

impl QueueFile {
    /// Opens the queue's file; makes it if it is missing.
    pub(super) fn open(
        directory: &Directory,
        key: &QueueKey,
        durable: bool,
        floor: &Floor,
    ) -> Result<Self> {
        // A missing file would have been created: so the directory is missing, and the session's file with it.
        let missing = || Error::lost("open", LossReason::Revoked);
        let line = header::name_line(key.name());
        Self::open_if(directory, file_name(key), line, durable, true, floor)?.ok_or_else(missing)
    }

    /// Opens the queue's file if it is there.
    pub(super) fn open_existing(
        directory: &Directory,
        key: &QueueKey,
        floor: &Floor,
    ) -> Result<Option<Self>> {
        let line = header::name_line(key.name());
        Self::open_if(directory, file_name(key), line, false, false, floor)
    }

    /// Opens the file with this name, if it exists; `name`: the queue's name.
    pub(super) fn open_named(
        directory: &Directory,
        file: &str,
        name: &str,
        floor: &Floor,
    ) -> Result<Option<Self>> {
        Self::open_if(directory, file.to_owned(), header::name_line(name), false, false, floor)
    }

    fn open_if(
        directory: &Directory,
        name: String,
        name_line: String,
        durable: bool,
        create: bool,
        floor: &Floor,
    ) -> Result<Option<Self>> {
        let path = directory.path().join(&name);
        let Some(file) = directory.file(&name, create)? else { return Ok(None) };
        let stat = fs::fstat(&file).map_err(|errno| storage("open", &path, errno))?;
        let system = fs::fstatvfs(&file).map_err(|errno| storage("statfs", &path, errno))?;
        let block = system.f_frsize.clamp(1, BLOCK);
        let mut first = [0];
        let read = rustix::io::pread(&file, &mut first, 0);
        read.map_err(|errno| storage("read", &path, errno))?;
        // A file that begins with a zero byte is new, or its creator was killed before it wrote the header. Only for such a file is
        // the floor read, and only after it was opened: before it was created, an earlier file of this queue may have been pruned,
        // and the floor raised.
        let floor = if first == [0] { floor.read(directory)? } else { floor.known() };
        Ok(Some(Self {
            file,
            inode: stat.st_ino,
            floor,
            name: CString::new(name).unwrap_or_default(),
            path,
            header: String::new(),
            generation: 0,
            log: Log::default(),
            name_line,
            read_to: 0,
            start: 0,
            long_at: 0,
            block,
            room_to: 0,
            durable,
            buffer: vec![0; PAGE],
            line: String::new(),
        }))
    }

    /// Takes the short lock and reads what other processes have written; `None`: another process has the lock for too long.
    pub(super) fn lock(&mut self) -> Result<Option<Locked<'_>>> {
        for _ in 0..SPINS {
            match fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // From here on, dropping `locked` unlocks the file, even if reading fails.
                    let mut locked = Locked { queue: self };
                    locked.read()?;
                    return Ok(Some(locked));
                }
                Err(Errno::WOULDBLOCK) => std::thread::yield_now(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(storage("lock", &self.path, errno)),
            }
        }
        Ok(None)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Unlocks explicitly, not by closing: a child process that was forked while the file was locked has a copy of the
        // descriptor.
        let _ = fs::flock(&self.queue.file, FlockOperation::Unlock);
    }
}

impl Locked<'_> {
    /// Whether the queue's name still leads to this file.
    pub(super) fn is_in_place(&self, directory: &Directory) -> Result<bool> {
        Ok(directory.inode(self.queue.name.as_c_str())? == Some(self.queue.inode))
    }

    /// The entries that have not left, those of dead sessions included, and the value.
    pub(super) fn log(&self) -> &Log {
        &self.queue.log
    }

    /// Identifies the state of the log: two different states have different moments. The death of a session does not change the
    /// moment, as it writes nothing.
    pub(super) fn moment(&self) -> (Inode, u64, u64) {
        (self.queue.inode, self.queue.generation, self.queue.read_to)
    }

    /// Appends an entry with this number.
    pub(super) fn enter(&mut self, seq: u64, record: Record) -> Result<()> {
        self.queue.line.clear();
        log::format_enter(&mut self.queue.line, seq, &record);
        self.append_with_room(self.queue.log.to_come() + record.to_come())?;
        self.queue.log.enter(seq, record);
        Ok(())
    }

    pub(super) fn update(&mut self, seq: u64, mode: Mode, data: &Data) -> Result<()> {
        self.queue.line.clear();
        log::format_update(&mut self.queue.line, seq, mode, data);
        self.append_with_room(self.queue.log.to_come_after(seq, data))?;
        self.queue.log.update(seq, mode, Data::clone(data));
        self.trim();
        Ok(())
    }

    /// Removes an entry.
    pub(super) fn leave(&mut self, seq: u64) -> Result<()> {
        if !self.queue.log.leave(seq) {
            return Ok(());
        }
        self.queue.line.clear();
        log::format_leave(&mut self.queue.line, seq);
        if self.is_better_cut_back() {
            return self.cut_back();
        }
        if let Err(error) = self.append() {
            // A full disk must not keep an entry from leaving: cutting the file back needs no space.
            if self.can_be_cut_back() {
                return self.cut_back();
            }
            // The next read finds the entry again, and its owner tries again.
            self.forget();
            return Err(error);
        }
        self.trim();
        Ok(())
    }

    /// Writes the value, and the records that change together with it.
    pub(super) fn write(&mut self, value: Written, beside: &[Beside]) -> Result<()> {
        self.queue.line.clear();
        log::format_value(&mut self.queue.line, &value, beside);
        self.set(|log| log.write(value, beside))
    }

    /// Removes the value. The removal takes this number.
    pub(super) fn remove(&mut self, number: u64, removed: Removed) -> Result<()> {
        self.queue.line.clear();
        log::format_removal(&mut self.queue.line, number, removed);
        self.set(|log| log.remove(number, removed))
    }

    /// Makes a change to the value in memory, and appends its line to the log. The caller has put that line into `self.queue.line`.
    fn set(&mut self, change: impl FnOnce(&mut Log)) -> Result<()> {
        change(&mut self.queue.log);
        if self.is_better_cut_back() {
            return self.cut_back();
        }
        // The change was made in memory and not written, so everything has to be read again.
        if let Err(error) = self.append_with_room(self.queue.log.to_come()) {
            self.forget();
            return Err(error);
        }
        self.trim();
        Ok(())
    }

    /// Waits until what was written has reached the disk.
    pub(super) fn sync(&self) -> Result<()> {
        fs::fdatasync(&self.queue.file).map_err(|errno| storage("sync", &self.queue.path, errno))
    }

    /// Reads what other processes have written since the last step.
    fn read(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.queue.buffer);
        let outcome = self.read_into(&mut buffer);
        buffer.resize(PAGE, 0);
        buffer.shrink_to(KEPT);
        self.queue.buffer = buffer;
        if outcome.is_err() {
            self.forget();
        }
        outcome
    }

    fn read_into(&mut self, buffer: &mut Vec<u8>) -> Result<()> {
        let length = self.pread(buffer, 0)?;
        let Some(header) = buffer.get(..HEADER).filter(|_| length >= HEADER) else {
            return self.initialise();
        };
        let mut is_new = false;
        if header != self.queue.header.as_bytes() {
            if header.iter().all(|byte| *byte == 0) {
                return self.initialise();
            }
            let text = std::str::from_utf8(header).map_err(|_| self.damaged(0))?;
            let parsed = Header::parse(text).filter(|header| header.start >= self.log_start());
            let parsed = parsed.ok_or_else(|| self.damaged(0))?;
            let is_first = self.queue.header.is_empty();
            if is_first {
                self.check_name()?;
            }
            // If the log now starts after the offset up to which this process has read it, the lines in between cannot be read any
            // more. Then everything is read anew.
            is_new = is_first
                || parsed.generation != self.queue.generation
                || parsed.start > self.queue.read_to;
            if is_new {
                self.queue.log = Log::after(parsed.last);
                self.queue.read_to = parsed.start;
                self.queue.room_to = 0;
            }
            self.begin_at(parsed.start);
            self.queue.generation = parsed.generation;
            self.queue.header = text.to_owned();
        }
        if (length as u64) < self.queue.read_to.min(PAGE as u64) {
            return self.restart(length as u64);
        }
        // Most often, all that is new is in the buffer already. The log ends where zeros begin.
        let from = usize::try_from(self.queue.read_to).unwrap_or(usize::MAX);
        let new = buffer.get(from..length).unwrap_or_default();
        match new.iter().position(|byte| *byte == 0) {
            Some(end) => self.replay(new.get(..end).unwrap_or_default()),
            None if length < buffer.len() && from <= length => self.replay(new),
            None => self.read_rest(buffer),
        }?;
        if is_new { self.cut_off_history() } else { Ok(()) }
    }

    /// Reads into the buffer what the log has from `read_to` on.
    fn read_rest(&mut self, buffer: &mut Vec<u8>) -> Result<()> {
        let mut filled = 0;
        loop {
            // Most often little is left to read, and the buffer is large enough.
            if buffer.len() < filled + PAGE {
                buffer.resize(filled + KEPT, 0);
            }
            let chunk = buffer.get_mut(filled..).unwrap_or_default();
            let read = self.pread(chunk, self.queue.read_to + filled as u64)?;
            if filled + read == 0 {
                let length = self.length()?;
                if length < self.queue.read_to {
                    return self.restart(length);
                }
            }
            let text = chunk.get(..read).unwrap_or_default();
            let end = text.iter().position(|byte| *byte == 0);
            filled += end.unwrap_or(read);
            if read == 0 || end.is_some() {
                return self.replay(buffer.get(..filled).unwrap_or_default());
            }
        }
    }

    fn replay(&mut self, text: &[u8]) -> Result<()> {
        let replayed = self.queue.log.replay(text);
        let good =
            replayed.map_err(|damaged| self.damaged(self.queue.read_to + damaged.at as u64))?;
        self.queue.read_to += good as u64;
        if good < text.len() {
            // The last line is half-written: its writer was killed, and the line never took effect.
            self.cut_off_end()?;
        }
        Ok(())
    }

    /// Writes the header of a file that is new, or that somebody has cut to nothing. Its numbers begin with the clock's time, above
    /// all numbers that are known.
    fn initialise(&mut self) -> Result<()> {
        self.queue.log = Log::after(self.queue.floor.max(self.queue.log.last));
        // Another process may have read an earlier file in this place: this generation is one that it has not seen, so it reads
        // everything anew.
        self.queue.generation = unix_micros().max(self.queue.generation + 1);
        // The name is written before the header: if the writer is killed in between, the next process finds no header, and writes
        // both anew.
        self.pwrite(self.queue.name_line.as_bytes(), HEADER as u64)?;
        self.write_header(self.log_start())?;
        self.queue.read_to = self.log_start();
        self.queue.room_to = 0;
        self.reserve()
    }

    /// Goes on after somebody has cut the file to this length. A new generation makes all processes forget what they have read,
    /// so that for all of them the queue is what is left in the file.
    fn restart(&mut self, length: u64) -> Result<()> {
        if length < self.log_start() {
            return self.initialise();
        }
        let start = self.queue.start.min(length);
        self.queue.generation = unix_micros().max(self.queue.generation + 1);
        self.write_header(start)?;
        self.reserve()?;
        self.queue.log = Log::after(self.queue.log.last);
        self.queue.read_to = start;
        self.queue.room_to = 0;
        let mut rest = Vec::new();
        self.read_rest(&mut rest)
    }

    fn length(&self) -> Result<u64> {
        // Asks for the size only: see `Directory::inode`.
        let stat = fs::statx(&self.queue.file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
        Ok(stat.map_err(|errno| self.failed("stat", errno))?.stx_size)
    }

    /// Two names with the same hash must not share a lock (S8).
    fn check_name(&self) -> Result<()> {
        let expected = &self.queue.name_line;
        let mut stored = vec![0; expected.len()];
        let read = self.pread(&mut stored, HEADER as u64)?;
        if read == expected.len() && stored == expected.as_bytes() {
            return Ok(());
        }
        let message = format!("{} belongs to another name", self.queue.path.display());
        Err(Error::new(ErrorKind::Collision, "open", message))
    }

    /// Where the log begins in a file that was never shortened: after header and name.
    fn log_start(&self) -> u64 {
        (HEADER + self.queue.name_line.len()) as u64
    }

    fn header(&self, start: u64) -> String {
        Header { generation: self.queue.generation, start, last: self.queue.log.last }.format()
    }

    fn write_header(&mut self, start: u64) -> Result<()> {
        let header = self.header(start);
        self.pwrite(header.as_bytes(), 0)?;
        self.queue.header = header;
        self.begin_at(start);
        Ok(())
    }

    fn begin_at(&mut self, start: u64) {
        self.queue.start = start;
        self.queue.long_at = start.saturating_add(compact::LONG);
    }

    fn pread(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        loop {
            match rustix::io::pread(&self.queue.file, &mut *buffer, at) {
                Err(Errno::INTR) => {}
                outcome => return outcome.map_err(|errno| self.failed("read", errno)),
            }
        }
    }

    fn pwrite(&self, text: &[u8], at: u64) -> Result<()> {
        self.pwrite_until_it_fails(text, at).map_err(|(_, errno)| self.failed("write", errno))
    }

    /// On failure also returns how many bytes were written.
    fn pwrite_until_it_fails(&self, text: &[u8], at: u64) -> Result<(), (usize, Errno)> {
        let mut written = 0;
        while let Some(rest) = text.get(written..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.queue.file, rest, at + written as u64) {
                Ok(0) => return Err((written, Errno::NOSPC)),
                Ok(bytes) => written += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err((written, errno)),
            }
        }
        Ok(())
    }

    /// Makes the next read begin from the start of the file.
    fn forget(&mut self) {
        self.queue.header.clear();
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> Error {
        storage(operation, &self.queue.path, errno)
    }

    fn damaged(&self, at: u64) -> Error {
        let message = format!(
            "{} is damaged at byte {at}; when no process uses this lock, remove the file",
            self.queue.path.display()
        );
        Error::new(ErrorKind::Corrupt, "read", message)
    }
}

/// The name of a queue's file, which no other queue has: the kind, and at most 200 bytes.
pub(super) fn file_name(key: &QueueKey) -> String {
    format!("{}.{}", key.kind(), key.encoded())
}

/// Whether a file with this name is that of a queue of this kind.
pub(super) fn is_of(file_name: &str, kind: &str) -> bool {
    file_name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'))
}

/// The queue's full name, as this file has it; `None`: the file is gone, or its name is not written yet.
pub(super) fn stored_name(directory: &Directory, file_name: &str) -> Result<Option<String>> {
    let path = directory.path().join(file_name);
    let Some(file) = directory.file(file_name, false)? else { return Ok(None) };
    let mut text = vec![0; header::LONGEST_NAME_LINE];
    let read = rustix::io::pread(&file, &mut text[..], HEADER as u64);
    text.truncate(read.map_err(|errno| storage("read", &path, errno))?);
    Ok(header::parse_name_line(&text))
}
