//! One queue: a file with a log, which is read and appended to under the queue's short lock, a `flock` of the file.

mod ahead;
mod compact;
mod room;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{self, FlockOperation};
use rustix::io::Errno;

use super::directory::{self, Directory};
use super::error::storage;
use super::floor::Floor;
use super::header::{self, HEADER, Header};
use super::log::{self, Log, Record, Removed, Written};
use super::system::{self, Inode};
use crate::backend::{Beside, Data, Mode};
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;

/// The size of one read, and the size that a new file gets in advance. A write within that size costs the file system less than a
/// write that makes the file grow. This size is a part of a memory page, so other processes see a write within it as a whole or not
/// at all.
const PAGE: usize = 1024;
/// Space on the disk is reserved in multiples of this many bytes, so that most lines need no system call that reserves space.
const BLOCK: u64 = 4096;
/// How large the buffers of an open file may stay while the file is not used. A buffer that has become larger is made smaller.
const KEPT: usize = 16 * PAGE;
/// How often `lock` tries to take the short lock before it returns `None`. Each process keeps the lock only for a moment,
/// unless the system stops the process in that time.
const SPINS: usize = 20;

/// A queue's open file, and what this process has read from it so far.
pub(super) struct QueueFile {
    file: OwnedFd,
    inode: Inode,
    /// The floor as this process knew it when it opened this file. If the file is new, its numbers begin above this number.
    floor: u64,
    /// The file's name as a C string, which system calls take. Every entry needs it, so it is converted only once.
    name: CString,
    path: PathBuf,
    /// The header as this process last read or wrote it. Empty: the next call has to read everything again.
    header: String,
    generation: u64,
    log: Log,
    /// The line after the header, which has the queue's name.
    name_line: String,
    /// The offset up to which the log was read.
    read_to: u64,
    /// Whether this process has not yet read a log of this generation up to its end. Once it has,
    /// [`cut_off_history`](Locked::cut_off_history) is due.
    is_new: bool,
    /// The offset where the log begins, according to the header.
    start: u64,
    /// When `read_to` reaches this offset, `trim` checks whether the log is worth shortening.
    long_at: u64,
    /// The size of the blocks in which the file system assigns space to files.
    block: u64,
    /// The offset up to which space is reserved on the disk. Zero: as far as this process knows, no space is reserved beyond the
    /// block in which the log ends.
    room_to: u64,
    /// Whether the URL has `durable=true`. If so, new data must be on the disk before the data that they replace are removed.
    durable: bool,
    buffer: Vec<u8>,
    line: String,
    /// The largest number of bytes of the log that were read under the short lock at once.
    #[cfg(test)]
    most_in_turn: usize,
}

/// Identifies the state of a queue's log: two different states have different values.
pub(super) type LogState = (Inode, u64, u64);

/// Where a read of the log has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// At a zero byte: there the log ends.
    Zero,
    OfFile,
    /// The log goes on.
    NotReached,
}

/// A queue's file while this process has its short lock: no other process changes the file until this is dropped.
pub(super) struct Locked<'a> {
    queue: &'a mut QueueFile,
}

impl QueueFile {
    /// Opens the queue's file. Creates it if it is missing.
    pub(super) fn open(
        directory: &Directory,
        key: &QueueKey,
        durable: bool,
        floor: &Floor,
    ) -> Result<Self> {
        // `open_if` creates a missing file. So if there is still no file, the directory is missing, and with it the session's file:
        // the session is lost.
        let missing = || Error::lost("open", LossReason::Revoked);
        let line = header::name_line(key.name());
        Self::open_if(directory, file_name(key), line, durable, true, floor)?.ok_or_else(missing)
    }

    /// Opens the queue's file, if it exists.
    pub(super) fn open_existing(
        directory: &Directory,
        key: &QueueKey,
        floor: &Floor,
    ) -> Result<Option<Self>> {
        let line = header::name_line(key.name());
        Self::open_if(directory, file_name(key), line, false, false, floor)
    }

    /// Opens the file `file`, if it exists. `name` is the name of the queue.
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
        // If the file begins with a zero byte, it is new, or its creator was killed before it wrote the header. Only then is the
        // floor read from its file, and only after this file was opened: until this file was created, another process may have
        // pruned an earlier file of this queue, and have raised the floor.
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
            is_new: false,
            start: 0,
            long_at: 0,
            block,
            room_to: 0,
            durable,
            buffer: vec![0; PAGE],
            line: String::new(),
            #[cfg(test)]
            most_in_turn: 0,
        }))
    }

    /// Takes the short lock and reads what other processes have written. `None`: another process keeps the lock for longer than
    /// usual.
    pub(super) fn lock(&mut self) -> Result<Option<Locked<'_>>> {
        if !self.take()? {
            return Ok(None);
        }
        // Made before the file is read: even if reading fails, the drop of `locked` unlocks the file.
        let mut locked = Locked { queue: self };
        Ok(locked.catch_up()?.then_some(locked))
    }

    /// Takes the short lock. Returns false if another process keeps it for longer than usual.
    fn take(&self) -> Result<bool> {
        for _ in 0..SPINS {
            match fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    #[cfg(test)]
                    turn::note(true);
                    return Ok(true);
                }
                Err(Errno::WOULDBLOCK) => std::thread::yield_now(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(storage("lock", &self.path, errno)),
            }
        }
        Ok(false)
    }

    fn let_go(&self) {
        #[cfg(test)]
        turn::note(false);
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Unlocks explicitly. Closing the file would not be enough: a child process that was forked while the file was locked has a
        // copy of the descriptor.
        self.queue.let_go();
        // In a panic, a change may have been made in memory whose line is not in the file. So the next call reads the file again.
        if std::thread::panicking() {
            self.forget();
        }
    }
}

impl Locked<'_> {
    /// Whether the queue's name still leads to this file. If not, another process has removed or replaced the file.
    pub(super) fn is_in_place(&self, directory: &Directory) -> Result<bool> {
        Ok(directory.inode(self.queue.name.as_c_str())? == Some(self.queue.inode))
    }

    /// The queue's entries that have not left, those of dead sessions included, and the queue's value.
    pub(super) fn log(&self) -> &Log {
        &self.queue.log
    }

    /// The name of the queue's file.
    #[cfg(linux_kernel)]
    pub(super) fn file_name(&self) -> &str {
        self.queue.name.to_str().unwrap_or_default()
    }

    /// Identifies the state of the log: two different states have different results. The death of a session writes nothing to the
    /// file, so it does not change the result.
    pub(super) fn moment(&self) -> LogState {
        (self.queue.inode, self.queue.generation, self.queue.read_to)
    }

    /// Appends an entry, with the number `seq`.
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
            // A full disk must not keep an entry from leaving. Cutting the file back needs no space.
            if self.can_be_cut_back() {
                return self.cut_back();
            }
            // In memory the entry is removed, in the file it is not. So the file is read again, which brings the entry back, and
            // the owner of the entry tries again.
            self.forget();
            return Err(error);
        }
        self.trim();
        Ok(())
    }

    /// Writes the value, and the records that change together with the value.
    pub(super) fn write(&mut self, value: Written, beside: &[Beside]) -> Result<()> {
        self.queue.line.clear();
        log::format_value(&mut self.queue.line, &value, beside);
        self.set(|log| log.write(value, beside))
    }

    /// Removes the value. `number` becomes the number of the removal.
    pub(super) fn remove(&mut self, number: u64, removed: Removed) -> Result<()> {
        self.queue.line.clear();
        log::format_removal(&mut self.queue.line, number, removed);
        self.set(|log| log.remove(number, removed))
    }

    /// Makes a change of the value in memory, and appends to the log the line that the caller has put into `self.queue.line`.
    fn set(&mut self, change: impl FnOnce(&mut Log)) -> Result<()> {
        change(&mut self.queue.log);
        if self.is_better_cut_back() {
            return self.cut_back();
        }
        // On failure, the change is in memory but not in the file. So the file has to be read again.
        if let Err(error) = self.append_with_room(self.queue.log.to_come()) {
            self.forget();
            return Err(error);
        }
        self.trim();
        Ok(())
    }

    /// Waits until the disk has everything that was written to the file.
    pub(super) fn sync(&self) -> Result<()> {
        system::sync_data(&self.queue.file)
            .map_err(|errno| storage("sync", &self.queue.path, errno))
    }

    /// Reads what other processes have written since this process read the file last. Returns false if that are more than `most`
    /// bytes: then nothing of it was applied.
    fn read(&mut self, most: usize) -> Result<bool> {
        let mut buffer = std::mem::take(&mut self.queue.buffer);
        // After a panic in the middle of a read the buffer is empty, and nothing can be read into an empty buffer. Then the file
        // would be taken for an empty one, and a new header would be written.
        buffer.resize(PAGE, 0);
        let outcome = self.read_into(&mut buffer, most);
        buffer.truncate(PAGE);
        buffer.shrink_to(KEPT);
        self.queue.buffer = buffer;
        if outcome.is_err() {
            self.forget();
        }
        outcome
    }

    fn read_into(&mut self, buffer: &mut Vec<u8>, most: usize) -> Result<bool> {
        let length = self.pread(buffer, 0)?;
        let Some(header) = buffer.get(..HEADER).filter(|_| length >= HEADER) else {
            return self.initialise().map(|()| true);
        };
        if header != self.queue.header.as_bytes() {
            if header.iter().all(|byte| *byte == 0) {
                return self.initialise().map(|()| true);
            }
            let text = std::str::from_utf8(header).map_err(|_| self.damaged(0))?;
            let parsed = Header::parse(text).filter(|header| header.start >= self.log_start());
            let parsed = parsed.ok_or_else(|| self.damaged(0))?;
            let is_first = self.queue.header.is_empty();
            if is_first {
                self.check_name()?;
            }
            // If the log now begins after the offset up to which this process has read it, the lines in between cannot be read any
            // more. Then this process reads the whole log again.
            let is_new = is_first
                || parsed.generation != self.queue.generation
                || parsed.start > self.queue.read_to;
            if !is_first && parsed.generation < self.queue.generation {
                // An older copy was put in place of the contents.
                self.wake_all();
            }
            if is_new {
                self.queue.log = Log::after(parsed.last);
                self.queue.read_to = parsed.start;
                self.queue.room_to = 0;
                self.queue.is_new = true;
            }
            self.begin_at(parsed.start);
            self.queue.generation = parsed.generation;
            self.queue.header = text.to_owned();
        }
        if (length as u64) < self.queue.read_to.min(PAGE as u64) {
            return self.restart(length as u64).map(|()| true);
        }
        // In most cases all new lines are in the buffer already, and no further read is needed. The log ends where zeros begin.
        let from = usize::try_from(self.queue.read_to).unwrap_or(usize::MAX);
        let new = buffer.get(from..length).unwrap_or_default();
        let is_read = match new.iter().position(|byte| *byte == 0) {
            Some(end) => self.replay(new.get(..end).unwrap_or_default()).map(|()| true),
            None if length < buffer.len() && from <= length => self.replay(new).map(|()| true),
            None => self.read_rest(buffer, most),
        }?;
        if is_read && self.queue.is_new {
            self.cut_off_history()?;
            self.queue.is_new = false;
        }
        Ok(is_read)
    }

    /// Reads the log from `read_to` up to its end, by way of the buffer, and applies what it reads. Returns false if that are more
    /// than `most` bytes: then nothing was applied.
    fn read_rest(&mut self, buffer: &mut Vec<u8>, most: usize) -> Result<bool> {
        let (filled, end) = self.fill(buffer, most)?;
        if filled == 0 && end == End::OfFile {
            let length = self.length()?;
            if length < self.queue.read_to {
                return self.restart(length).map(|()| true);
            }
        }
        if end == End::NotReached {
            return Ok(false);
        }
        self.replay(buffer.get(..filled).unwrap_or_default()).map(|()| true)
    }

    /// Reads the log from `read_to` on into the buffer, until there are more than `most` bytes or the log ends. Returns how many
    /// bytes of the log there are.
    fn fill(&self, buffer: &mut Vec<u8>, most: usize) -> Result<(usize, End)> {
        let mut filled = 0;
        loop {
            // In most cases little is left to read, and the buffer is large enough as it is.
            if buffer.len() < filled + PAGE {
                buffer.resize(filled + KEPT, 0);
            }
            let chunk = buffer.get_mut(filled..).unwrap_or_default();
            let read = self.pread(chunk, self.queue.read_to + filled as u64)?;
            let text = chunk.get(..read).unwrap_or_default();
            let zero = text.iter().position(|byte| *byte == 0);
            filled += zero.unwrap_or(read);
            match zero {
                Some(_) => return Ok((filled, End::Zero)),
                None if read == 0 => return Ok((filled, End::OfFile)),
                None if filled > most => return Ok((filled, End::NotReached)),
                None => {}
            }
        }
    }

    fn replay(&mut self, text: &[u8]) -> Result<()> {
        #[cfg(test)]
        {
            self.queue.most_in_turn = self.queue.most_in_turn.max(text.len());
        }
        let replayed = self.queue.log.replay(text);
        let good =
            replayed.map_err(|damaged| self.damaged(self.queue.read_to + damaged.at as u64))?;
        self.queue.read_to += good as u64;
        if good < text.len() {
            // The last line is half-written: its writer was killed, and the line never took effect. So the line is cut off.
            self.cut_off_end()?;
        }
        Ok(())
    }

    /// Writes the header of a file that is new, or that somebody has cut to nothing. The numbers of the queue go on after all
    /// numbers that this process knows: those of the floor, and those that it has read from this file.
    fn initialise(&mut self) -> Result<()> {
        self.queue.log = Log::after(self.queue.floor.max(self.queue.log.last));
        // Another process may have read earlier contents of this file. So the file gets a generation that no process has seen
        // before, and each process reads everything again.
        self.queue.generation = unix_micros().max(self.queue.generation + 1);
        // The name is written before the header. If the writer is killed in between, the next process finds no header, and writes
        // name and header again.
        self.pwrite(self.queue.name_line.as_bytes(), HEADER as u64)?;
        self.write_header(self.log_start())?;
        self.queue.read_to = self.log_start();
        self.queue.room_to = 0;
        self.reserve()?;
        self.wake_all();
        Ok(())
    }

    /// Wakes all who wait for the file. To be called when it was found that somebody has changed it who tells nobody.
    fn wake_all(&self) {
        // A failure is ignored: waiters look again by themselves.
        let _ = fs::futimens(&self.queue.file, &directory::NOW);
    }

    /// To be called when somebody has cut the file to this length. Gives the file a new generation, so that each process forgets
    /// what it has read, and reads what is left in the file.
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
        self.read_rest(&mut rest, usize::MAX)?;
        self.wake_all();
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        system::length(&self.queue.file).map_err(|errno| self.failed("stat", errno))
    }

    /// Fails if this file belongs to another queue, whose name has the same hash: two queues must not share a file (S8).
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

    /// The offset where the log begins in a file that was never shortened: after the header and the name.
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

    /// Writes the whole text. On failure, also returns how many bytes were written.
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

    /// Makes the next call read the file again from its beginning.
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

/// The name of a queue's file: the queue's kind, a dot, and the encoded name of at most 200 bytes. No two queues have the same file
/// name, unless the hashes of two long names are the same.
pub(super) fn file_name(key: &QueueKey) -> String {
    if system::folds_case() {
        return format!("{}.{}", key.kind(), system::file_name(key.name()));
    }
    // The key has that of other systems ready.
    format!("{}.{}", key.kind(), key.encoded())
}

/// Whether a file with this name belongs to a queue of this kind.
pub(super) fn is_of(file_name: &str, kind: &str) -> bool {
    file_name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'))
}

/// The queue's full name, which is stored in this file. `None`: the file does not exist, or its name is not written yet.
pub(super) fn stored_name(directory: &Directory, file_name: &str) -> Result<Option<String>> {
    let path = directory.path().join(file_name);
    let Some(file) = directory.file(file_name, false)? else { return Ok(None) };
    let mut text = vec![0; header::LONGEST_NAME_LINE];
    let read = rustix::io::pread(&file, &mut text[..], HEADER as u64);
    text.truncate(read.map_err(|errno| storage("read", &path, errno))?);
    Ok(header::parse_name_line(&text))
}

/// Whether a thread of a test has a queue's short lock.
#[cfg(test)]
pub(super) mod turn {
    use std::cell::Cell;

    thread_local! {
        static HAS_TURN: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn note(has_turn: bool) {
        HAS_TURN.set(has_turn);
    }

    pub(in crate::backend::file) fn is_now() -> bool {
        HAS_TURN.get()
    }
}
