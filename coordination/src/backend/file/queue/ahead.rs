//! Reading a long stretch of the log without the short lock.
//!
//! A process may have much to read: the whole log when it opens the file, or what many others have written since its last turn. All
//! others would have to wait meanwhile; and if the process is stopped, they wait until it goes on. So under the lock a process reads
//! only a little. If there is more, it lets go of the lock, reads on, and takes the lock again for what was written since then.

use super::{HEADER, Locked};
use crate::error::Result;

/// The largest number of bytes that are read under the short lock, as long as there are [`ROUNDS`] left. Of most queues this is more
/// than the whole log.
pub(super) const IN_TURN: usize = 64 * 1024;
/// How often a process lets go of the lock in order to read. After that it reads whatever there is, so that it gets its turn although
/// others write all the time.
const ROUNDS: usize = 3;

impl Locked<'_> {
    /// Reads what other processes have written, and returns true: this process has the short lock, and knows all that is in the
    /// file. False: another process has the lock by now.
    pub(super) fn catch_up(&mut self) -> Result<bool> {
        for _ in 0..ROUNDS {
            if self.read(IN_TURN)? {
                return Ok(true);
            }
            self.queue.let_go();
            self.read_ahead()?;
            if !self.queue.take()? {
                return Ok(false);
            }
        }
        self.read(usize::MAX)
    }

    /// Reads the log on as far as it goes, without the short lock. Others may write meanwhile, so this changes nothing in the file
    /// and judges nothing: where it finds anything that is no whole line, it stops, and the next read under the lock goes on there.
    ///
    /// Invariant: as long as the header is the same, the log is at the same place, and after `read_to` complete lines are only
    /// appended. Whoever moves the log, or cuts off its end, gives the file another header before, which never comes again. So if
    /// the header is still the known one after the text was read, each complete line of the text is a line of the log. Of a line
    /// that is being written, a part may be in the text; its checksum is wrong.
    pub(super) fn read_ahead(&mut self) -> Result<()> {
        let mut text = Vec::new();
        let (filled, _) = self.fill(&mut text, usize::MAX)?;
        let mut header = [0; HEADER];
        self.pread(&mut header, 0)?;
        if header[..] != *self.queue.header.as_bytes() {
            return Ok(());
        }
        let replayed = self.queue.log.replay(text.get(..filled).unwrap_or_default());
        self.queue.read_to += replayed.unwrap_or_else(|damaged| damaged.at) as u64;
        Ok(())
    }
}
