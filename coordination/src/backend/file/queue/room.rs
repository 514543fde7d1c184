//! Growing the log, and room on the disk for those who are to leave.
//!
//! What is added to a log that has live entries must leave room for a line for each of them, and where a recipe has yet to change
//! an entry before its turn has come, for that too. The room is taken from the disk together with what needs it, or nothing is
//! written. So a full disk keeps nobody from his turn who was let in, and nobody from leaving.
//!
//! It is taken in blocks, and what a block has left needs no call to the system: few calls take any.

use rustix::fs::{self, FallocateFlags};
use rustix::io::Errno;

use super::{BLOCK, KEPT, Locked, PAGE};
use crate::error::Result;

impl Locked<'_> {
    /// Gives a short file its page in advance. Without room for it, it grows line by line.
    pub(super) fn reserve(&self) -> Result<()> {
        if self.log_start() < PAGE as u64 {
            fs::ftruncate(&self.queue.file, PAGE as u64)
                .map_err(|errno| self.failed("reserve", errno))?;
        }
        Ok(())
    }

    /// Writes the line at the end of the log.
    pub(super) fn append(&mut self) -> Result<()> {
        let (line, end) = (self.queue.line.as_bytes(), self.queue.read_to);
        if let Err((written, errno)) = self.pwrite_until_it_fails(line, end) {
            // What cannot be cut off now, is by whoever reads it.
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

    /// Writes the line at the end of the log if there is room for what is to come after that.
    pub(super) fn append_with_room(&mut self, to_come: u64) -> Result<()> {
        self.make_room(self.queue.line.len() as u64, to_come)?;
        self.append()
    }

    /// Cuts off the end of the file, where half a line is. Room goes with it of which others know that have read the log so far; to
    /// them all is new after this.
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

    /// Takes once more what went with the end of the file. That was there a moment ago, so failure is no error.
    pub(super) fn make_room_again(&mut self) {
        self.queue.room_to = 0;
        if let Err(error) = self.make_room(0, self.queue.log.to_come()) {
            tracing::debug!(%error, "cannot keep room for those who are in a queue");
        }
    }

    fn make_room(&mut self, line: u64, to_come: u64) -> Result<()> {
        let from = self.queue.read_to;
        let needed = from + line + to_come;
        // The block that the log ends in has been written to.
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
                // Here room is taken only by what is written.
                Err(_) => self.queue.room_to = u64::MAX,
            }
            return Ok(());
        }
    }
}
