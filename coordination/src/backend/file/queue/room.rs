//! Appending lines to the log, and reserving space on the disk for lines that will be appended later.
//!
//! Before a line is appended, space is reserved on the disk for three things: for this line; for each live entry, for the line with
//! which it will leave; and for the updates that a recipe will make before an entry's turn has come. If the disk does not have so
//! much space, nothing is written. So once an entry was entered, a full disk keeps it neither from its turn nor from leaving.
//!
//! Space is reserved in blocks. A line that fits into the space that is already reserved needs no further system call, so most
//! lines need none.

use rustix::fs;
use rustix::io::Errno;

use super::{BLOCK, KEPT, Locked, PAGE};
use crate::backend::file::system;
use crate::error::Result;

impl Locked<'_> {
    /// Makes a short file one page long in advance. If header and name already fill the page, does nothing: then each line makes
    /// the file grow.
    pub(super) fn reserve(&self) -> Result<()> {
        if self.log_start() < PAGE as u64 {
            fs::ftruncate(&self.queue.file, PAGE as u64)
                .map_err(|errno| self.failed("reserve", errno))?;
        }
        Ok(())
    }

    /// Writes the line in `self.queue.line` at the end of the log. Reserves no space.
    pub(super) fn append(&mut self) -> Result<()> {
        let (line, end) = (self.queue.line.as_bytes(), self.queue.read_to);
        if let Err((written, errno)) = self.pwrite_until_it_fails(line, end) {
            // Half a line may have been written. If it cannot be cut off now, the next process that reads the file cuts it off.
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

    /// Reserves space for the line in `self.queue.line` and for `to_come` more bytes. If the disk has so much space, writes the
    /// line at the end of the log.
    pub(super) fn append_with_room(&mut self, to_come: u64) -> Result<()> {
        self.make_room(self.queue.line.len() as u64, to_come)?;
        self.append()
    }

    /// Cuts off an incomplete line at the end of the file. This also frees the space that was reserved behind that line, but other
    /// processes still believe that it is reserved. So the file gets a higher generation: when these processes see it, they read the
    /// whole file again and reserve space again.
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

    /// Reserves space again after the end of the file was cut off. The disk had this space a moment ago, so failure is unlikely,
    /// and is not returned.
    pub(super) fn make_room_again(&mut self) {
        self.queue.room_to = 0;
        if let Err(error) = self.make_room(0, self.queue.log.to_come()) {
            tracing::debug!(%error, "cannot keep room for those who are in a queue");
        }
    }

    fn make_room(&mut self, line: u64, to_come: u64) -> Result<()> {
        let from = self.queue.read_to;
        let needed = from + line + to_come;
        // The block in which the log ends was written to, so the disk has given the file all of this block.
        let room_to = self.queue.room_to.max(from.next_multiple_of(self.queue.block));
        if to_come == 0 || needed <= room_to {
            return Ok(());
        }
        let to = needed.next_multiple_of(BLOCK);
        loop {
            match system::reserve(&self.queue.file, from, to - from) {
                Ok(()) => self.queue.room_to = to,
                Err(Errno::INTR) => continue,
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(self.failed("write", errno));
                }
                // This file system cannot reserve space. `u64::MAX` keeps this process from trying it again.
                Err(_) => self.queue.room_to = u64::MAX,
            }
            return Ok(());
        }
    }
}
