//! Growing the log, and keeping space on the disk for entries that are to leave.
//!
//! Before a line is added to a log, space is reserved on the disk: for this line, for one more line for each live entry, with which
//! it leaves, and for the updates that a recipe will make before an entry's turn has come. If the disk has no such space, nothing
//! is written. So once an entry is entered, a full disk keeps it neither from its turn nor from leaving.
//!
//! Space is reserved in blocks. A line that fits into what the last block has left needs no system call, so few lines need one.

use rustix::fs::{self, FallocateFlags};
use rustix::io::Errno;

use super::{BLOCK, KEPT, Locked, PAGE};
use crate::error::Result;

impl Locked<'_> {
    /// Makes a short file one page long in advance. If header and name fill the page, the file grows line by line instead.
    pub(super) fn reserve(&self) -> Result<()> {
        if self.log_start() < PAGE as u64 {
            fs::ftruncate(&self.queue.file, PAGE as u64)
                .map_err(|errno| self.failed("reserve", errno))?;
        }
        Ok(())
    }

    /// Writes the line in `self.queue.line` at the end of the log.
    pub(super) fn append(&mut self) -> Result<()> {
        let (line, end) = (self.queue.line.as_bytes(), self.queue.read_to);
        if let Err((written, errno)) = self.pwrite_until_it_fails(line, end) {
            // If half a line cannot be cut off now, the next reader cuts it off.
            if written > 0
                && let Err(error) = self.cut_off_end()
            {
                tracing::debug!(%error, "cannot cut off half a line");
            }
            return Err(self.failed("write", errno));
        }
        self.queue.read_to += self.queue.line.len() as u64;
        self.queue.line.shrink_to(KEPT);
        Ok(())
    }

    /// Writes the line in `self.queue.line` at the end of the log, if there is space for it and for `to_come` more bytes.
    pub(super) fn append_with_room(&mut self, to_come: u64) -> Result<()> {
        self.make_room(self.queue.line.len() as u64, to_come)?;
        self.append()
    }

    /// Cuts off half a line at the end of the file. This also frees the reserved space behind it, which other processes count on.
    /// So the generation rises, which makes them read everything anew, and reserve again.
    pub(super) fn cut_off_end(&mut self) -> Result<()> {
        let generation = self.queue.generation;
        self.queue.generation += 1;
        let done = self.write_header(self.queue.start).and_then(|()| {
            let cut = fs::ftruncate(&self.queue.file, self.queue.read_to);
            cut.map_err(|errno| self.failed("repair", errno))
        });
        match done {
            Ok(()) => self.make_room_again(),
            Err(_) => {
                self.queue.generation = generation;
                self.forget();
            }
        }
        done
    }

    /// Reserves space again, after the end of the file was cut off. The space was there a moment ago, so a failure is not returned.
    pub(super) fn make_room_again(&mut self) {
        self.queue.room_to = 0;
        if let Err(error) = self.make_room(0, self.queue.log.to_come()) {
            tracing::debug!(%error, "cannot keep room for those who are in a queue");
        }
    }

    fn make_room(&mut self, line: u64, to_come: u64) -> Result<()> {
        let from = self.queue.read_to;
        let needed = from + line + to_come;
        // The block in which the log ends was written to, so the disk has space for all of this block.
        let room_to = self.queue.room_to.max(from.next_multiple_of(self.queue.block));
        if to_come == 0 || needed <= room_to {
            return Ok(());
        }
        let to = needed.next_multiple_of(BLOCK);
        loop {
            match fs::fallocate(&self.queue.file, FallocateFlags::KEEP_SIZE, from, to - from) {
                Ok(()) => self.queue.room_to = to,
                Err(Errno::INTR) => continue,
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(self.failed("write", errno));
                }
                // This file system cannot reserve space: do not try again.
                Err(_) => self.queue.room_to = u64::MAX,
            }
            return Ok(());
        }
    }
}
