//! One queue: a file whose log is read and appended to under a short `flock`.

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

/// What one read takes, and what a file is given in advance: writing within it costs the file system
/// less than growing it does. A part of a memory page, so that a write of it is seen whole or not
/// at all.
const PAGE: usize = 1024;
/// How much room is taken from the disk at a time for those who are to leave.
const BLOCK: u64 = 4096;
/// The room for text that a queue's file keeps while it is open.
const KEPT: usize = 16 * PAGE;
/// Tries for the short lock before its holder is taken to need longer: it has it for microseconds,
/// unless it was stopped in between.
const SPINS: usize = 20;

/// A queue's file, open, and what was read of it so far.
pub(super) struct QueueFile {
    file: OwnedFd,
    inode: Inode,
    /// What the numbers of a new file go on from.
    floor: u64,
    /// As the system takes it: it is asked for with every entry.
    name: CString,
    path: PathBuf,
    /// The header as last read or written; empty: everything is to be read anew.
    header: String,
    generation: u64,
    log: Log,
    /// The line after the header.
    name_line: String,
    /// How far the log was read.
    read_to: u64,
    /// Where the log begins now.
    start: u64,
    /// How long the file may get before a shorter one is thought of.
    long_at: u64,
    /// What the file system takes and gives at a time.
    block: u64,
    /// How far the disk is known to have room for the log, if that is beyond the block in which it ends.
    room_to: u64,
    /// What has to survive loss of power is on the disk before what it replaces goes.
    durable: bool,
    buffer: Vec<u8>,
    line: String,
}

/// The queue under its short lock: what it says is true until this is dropped.
pub(super) struct Locked<'a> {
    queue: &'a mut QueueFile,
}

impl QueueFile {
    /// Opens the queue's file, making it if it is missing.
    pub(super) fn open(
        directory: &Directory,
        key: &QueueKey,
        durable: bool,
        floor: &Floor,
    ) -> Result<Self> {
        // It is made if it is missing; so the directory is missing, and the session's own file with it.
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

    /// Opens the file of this name, which is that of the queue of that one, if it is there.
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
        // Whoever made the file may have been killed before it had a header. Read after that: one that had the name before may
        // have been removed in between.
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

    /// Takes the short lock and reads what is new; `None`: somebody has it and does not let go.
    pub(super) fn lock(&mut self) -> Result<Option<Locked<'_>>> {
        for _ in 0..SPINS {
            match fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // From here on dropping it unlocks, also when reading fails.
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
        // Explicitly, not by closing: a child forked meanwhile has a copy of the descriptor.
        let _ = fs::flock(&self.queue.file, FlockOperation::Unlock);
    }
}

impl Locked<'_> {
    /// Whether the queue's name still leads to this file.
    pub(super) fn is_in_place(&self, directory: &Directory) -> Result<bool> {
        Ok(directory.inode(self.queue.name.as_c_str())? == Some(self.queue.inode))
    }

    /// Entries that have not left, those of dead sessions among them, and the value.
    pub(super) fn log(&self) -> &Log {
        &self.queue.log
    }

    /// Tells what the log is now from what it was at any other time, sessions that died apart.
    pub(super) fn moment(&self) -> (Inode, u64, u64) {
        (self.queue.inode, self.queue.generation, self.queue.read_to)
    }

    /// Appends an entry; it has the number `seq` once this returns.
    pub(super) fn enter(&mut self, seq: u64, record: Record) -> Result<()> {
        self.queue.line.clear();
        log::format_enter(&mut self.queue.line, seq, &record);
        self.append_with_room(self.queue.log.to_come() + record.to_come())?;
        self.queue.log.enter(seq, record);
        Ok(())
    }

    /// Changes an entry.
    pub(super) fn update(&mut self, seq: u64, mode: Mode, data: &Data) -> Result<()> {
        self.queue.line.clear();
        log::format_update(&mut self.queue.line, seq, mode, data);
        self.append_with_room(self.queue.log.to_come_after(seq, data))?;
        self.queue.log.update(seq, mode, Data::clone(data));
        self.trim();
        Ok(())
    }

    /// Ends an entry.
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
            // A full disk must not keep anybody from leaving: cutting back needs no room.
            if self.can_be_cut_back() {
                return self.cut_back();
            }
            // The next read finds the entry again, and whoever leaves tries again.
            self.forget();
            return Err(error);
        }
        self.trim();
        Ok(())
    }

    /// Writes the value, and the records beside it.
    pub(super) fn write(&mut self, value: Written, beside: &[Beside]) -> Result<()> {
        self.queue.line.clear();
        log::format_value(&mut self.queue.line, &value, beside);
        self.set(|log| log.write(value, beside))
    }

    /// Removes the value, which takes this number.
    pub(super) fn remove(&mut self, number: u64, removed: Removed) -> Result<()> {
        self.queue.line.clear();
        log::format_removal(&mut self.queue.line, number, removed);
        self.set(|log| log.remove(number, removed))
    }

    /// Does to the value what the line says.
    fn set(&mut self, change: impl FnOnce(&mut Log)) -> Result<()> {
        change(&mut self.queue.log);
        if self.is_better_cut_back() {
            return self.cut_back();
        }
        // The next read finds what was there before.
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

    /// Reads what others have written since.
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
            // What lies before the start is not there to be read any more.
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
        // Most often all that is new is in the buffer already: the log ends where zeros begin.
        let from = usize::try_from(self.queue.read_to).unwrap_or(usize::MAX);
        let new = buffer.get(from..length).unwrap_or_default();
        match new.iter().position(|byte| *byte == 0) {
            Some(end) => self.replay(new.get(..end).unwrap_or_default()),
            None if length < buffer.len() && from <= length => self.replay(new),
            None => self.read_rest(buffer),
        }?;
        if is_new { self.cut_off_history() } else { Ok(()) }
    }

    /// Reads on from where the log was read to, over what is in the buffer.
    fn read_rest(&mut self, buffer: &mut Vec<u8>) -> Result<()> {
        let mut filled = 0;
        loop {
            // Most often there is little or nothing: what the buffer has will do.
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
            // The half-written line of a writer that was killed: it never took effect.
            self.cut_off_end()?;
        }
        Ok(())
    }

    /// A file that is new, or was cut to nothing by somebody: tokens go on by the clock, above all that is known.
    fn initialise(&mut self) -> Result<()> {
        self.queue.log = Log::after(self.queue.floor.max(self.queue.log.last));
        // A number that no process can have seen before, whatever it read of the file that was.
        self.queue.generation = unix_micros().max(self.queue.generation + 1);
        // The name first: a file without a header is initialised once more.
        self.pwrite(self.queue.name_line.as_bytes(), HEADER as u64)?;
        self.write_header(self.log_start())?;
        self.queue.read_to = self.log_start();
        self.queue.room_to = 0;
        self.reserve()
    }

    /// Somebody cut the file to this length: nobody is to go on with what it said before. What is left
    /// of it counts, for all alike.
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
        // Nothing but the size: see `Directory::inode`.
        let stat = fs::statx(&self.queue.file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
        Ok(stat.map_err(|errno| self.failed("stat", errno))?.stx_size)
    }

    /// Two names with one hash must not share a lock (S8).
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

    /// Where the log begins in a file that was never trimmed: after header and name.
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

    /// On failure answers how much was written as well.
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

    /// Makes the next read start from the beginning.
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

/// A name that no other queue has: at most 200 bytes and the kind.
pub(super) fn file_name(key: &QueueKey) -> String {
    format!("{}.{}", key.kind(), key.encoded())
}

/// Whether a file of this name is that of a queue of this kind.
pub(super) fn is_of(file_name: &str, kind: &str) -> bool {
    file_name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'))
}

/// The name of the queue in a file of this name, as the file has it in full; `None`: the file is gone, or
/// is about to be made.
pub(super) fn stored_name(directory: &Directory, file_name: &str) -> Result<Option<String>> {
    let path = directory.path().join(file_name);
    let Some(file) = directory.file(file_name, false)? else { return Ok(None) };
    let mut text = vec![0; header::LONGEST_NAME_LINE];
    let read = rustix::io::pread(&file, &mut text[..], HEADER as u64);
    text.truncate(read.map_err(|errno| storage("read", &path, errno))?);
    Ok(header::parse_name_line(&text))
}
