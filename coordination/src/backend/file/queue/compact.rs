//! How a queue's file is kept short: the lines that still have an effect (live lines) are written again, and the log before them is
//! dropped.
//!
//! At whatever moment a process is killed while it does this, the header of the file still leads to the same live lines. Other
//! bytes of the file may then be anything. Where such bytes follow the end of the log, [`Locked::cut_off_history`] removes them,
//! before the log grows into them.

use rustix::fs;

use super::{Locked, PAGE};
use crate::backend::file::{log, system};
use crate::error::Result;

/// A log that is shorter than this is not shortened.
pub(super) const LONG: u64 = 256 * 1024;
/// A log is shortened only if it is at least this many times as long as its live lines. Shortening writes all live lines again,
/// which would not be worth its cost for a shorter log.
const TIMES: u64 = 4;
/// If header, name and value need more of the first page than this, the file is not cut back to its first page, because too little
/// space for entries would be left there.
const FOR_VALUE: usize = PAGE * 3 / 4;

impl Locked<'_> {
    /// Whether the file can be cut back to its first page. This is possible if the queue has no entries and no records, and if its
    /// value is short enough or missing.
    pub(super) fn can_be_cut_back(&self) -> bool {
        if !self.queue.log.live().is_empty() || self.queue.log.has_records() {
            return false;
        }
        match self.queue.log.value() {
            None => true,
            // Cutting back overwrites the old value. If the power fails during that write, the disk may have only half of the page,
            // and so neither the old value nor the new one.
            Some(_) if self.queue.durable => false,
            Some(value) => self.log_start() as usize + log::longest_value_line(value) <= FOR_VALUE,
        }
    }

    /// Whether the file should be cut back to its first page, instead of appending the line in `self.queue.line`.
    pub(super) fn is_better_cut_back(&self) -> bool {
        self.queue.read_to + self.queue.line.len() as u64 > PAGE as u64 && self.can_be_cut_back()
    }

    /// Cuts the file of a queue without entries back to the header and the value. The header keeps the queue's last number.
    pub(super) fn cut_back(&mut self) -> Result<()> {
        let generation = self.queue.generation;
        let done = self.try_to_cut_back();
        if done.is_err() {
            // It is not known whether the new contents were written. If not, the file still has its earlier generation, so this
            // process goes back to that. If they were written, this does no harm: the next call reads everything from the file.
            self.queue.generation = generation;
            self.forget();
        }
        done
    }

    fn try_to_cut_back(&mut self) -> Result<()> {
        let text = self.queue.log.format();
        let (first, before) = (self.log_start(), self.queue.read_to);
        if first as usize + text.len() > PAGE {
            return self.cut_back_in_steps();
        }
        self.queue.generation += 1;
        // All of this is one write within one page, so no other process sees half of it.
        let header = self.header(first);
        let mut page =
            [header.as_bytes(), self.queue.name_line.as_bytes(), text.as_bytes()].concat();
        page.resize(PAGE, 0);
        self.pwrite(&page, 0)?;
        self.queue.header = header;
        self.begin_at(first);
        self.queue.read_to = first + text.len() as u64;
        if before > PAGE as u64 { self.truncate(PAGE as u64) } else { Ok(()) }
    }

    /// Does what [`cut_back`](Self::cut_back) does if header and name do not fit into the page. The queue then has no live lines,
    /// because with a value it could not be cut back at all. So the log becomes empty.
    fn cut_back_in_steps(&mut self) -> Result<()> {
        self.queue.generation += 1;
        // If the process is killed after this write, the log is empty, and begins at the end of the file.
        self.write_header(self.queue.read_to)?;
        self.queue.read_to = self.log_start();
        // If the process is killed after this, the file is shorter than the header says, as if somebody had cut it. `restart`
        // handles that.
        self.truncate(self.queue.read_to)?;
        self.write_header(self.queue.read_to)
    }

    /// Shortens a log that has become long. The caller's change is made already, so a failure to shorten the log is not returned.
    pub(super) fn trim(&mut self) {
        // An empty header means that the last call has failed. Then the file has to be read again before it can be shortened.
        if self.queue.read_to < self.queue.long_at || self.queue.header.is_empty() {
            return;
        }
        let text = self.queue.log.format();
        let worth = LONG.max(TIMES.saturating_mul(text.len() as u64));
        self.queue.long_at = self.queue.start.saturating_add(worth);
        if self.queue.read_to < self.queue.long_at {
            return;
        }
        let room = self.queue.start - self.log_start();
        let generation = self.queue.generation;
        let fits = (text.len() as u64) < room;
        let done = if fits { self.move_to_front(text) } else { self.move_to_end(text) };
        if let Err(error) = done {
            tracing::debug!(%error, "cannot shorten a queue's log");
            self.queue.generation = generation;
            self.forget();
        }
    }

    /// Writes the live lines into the space before the log, lets the log begin there, and drops the old log.
    fn move_to_front(&mut self, mut text: String) -> Result<()> {
        let first = self.log_start();
        let end = first + text.len() as u64;
        // A log ends where zeros begin. So a zero byte is written after the live lines.
        text.push('\0');
        self.pwrite(text.as_bytes(), first)?;
        self.sync_if_durable()?;
        self.queue.generation += 1;
        self.write_header(first)?;
        self.queue.read_to = end;
        self.sync_if_durable()?;
        self.truncate(end)
    }

    /// Writes the live lines again at the end of the log, lets the log begin there, and drops the lines before.
    ///
    /// The generation stays the same: a process that has read the whole log before need not read anything again.
    fn move_to_end(&mut self, text: String) -> Result<()> {
        let start = self.queue.read_to;
        self.queue.line = text;
        let appended = self.append_with_room(self.queue.log.to_come());
        self.queue.line = String::new();
        appended?;
        self.sync_if_durable()?;
        self.write_header(start)?;
        self.sync_if_durable()?;
        // This only frees space. Where no system call can do it, the live lines, for which there is room before the log now, are
        // written there.
        let from = self.log_start();
        if system::punch(&self.queue.file, from, start.saturating_sub(from)) {
            return Ok(());
        }
        let text = self.queue.log.format();
        self.move_to_front(text)
    }

    /// Removes what a killed process may have left after the end of the log. The log ends where zeros begin.
    ///
    /// A process calls this when it finds a generation that is new to it, and before it writes to the file. So each process that
    /// writes to the file, except the one that made the generation, has removed such bytes first.
    pub(super) fn cut_off_history(&mut self) -> Result<()> {
        if self.length()? <= self.queue.read_to.max(PAGE as u64) {
            return Ok(());
        }
        self.truncate(self.queue.read_to)
    }

    fn truncate(&mut self, length: u64) -> Result<()> {
        fs::ftruncate(&self.queue.file, length).map_err(|errno| self.failed("compact", errno))?;
        self.make_room_again();
        if length < PAGE as u64 { self.reserve() } else { Ok(()) }
    }

    fn sync_if_durable(&self) -> Result<()> {
        if self.queue.durable { self.sync() } else { Ok(()) }
    }
}
