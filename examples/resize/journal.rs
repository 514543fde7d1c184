//! What workers do, in one order for all.
//!
//! All workers write to one pipe, a line for each step by a single `write`. The kernel keeps short
//! writes to a pipe whole (up to `PIPE_BUF`, 4,096 bytes) and in order, so the order of the lines is the
//! order of events, and no clock is needed to say who came first. A killed worker takes nothing back:
//! what it wrote is in the pipe.

use std::io::{self, Write};

use coordination::FencingToken;
use serde::{Deserialize, Serialize};

use crate::storage::Content;

/// A line of the journal: who does what to which volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) worker: usize,
    pub(crate) volume: u32,
    pub(crate) step: Step,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Asks for the lock.
    Waits,
    /// Has the lock, and starts.
    Begins { token: Option<FencingToken> },
    /// Is about to replace what it had read.
    Writes { from: Content, to: Content },
    /// Has done so, and still has the lock.
    Done { from: Content, to: Content },
    /// Stopped between `Begins` and `Done`: by an error, or cancelled because the lock was lost.
    GaveUp,
    /// The resize failed.
    Failed { error: String },
    /// Written by the demo, right before it kills the worker.
    Killed,
}

impl Event {
    /// Appends the event to the journal.
    pub(crate) fn append(&self, mut journal: impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        journal.write_all(&line)
    }
}

/// A worker's way to the journal: its standard output.
pub(crate) struct Journal {
    worker: usize,
}

impl Journal {
    pub(crate) fn new(worker: usize) -> Self {
        Self { worker }
    }

    pub(crate) fn tell(&self, volume: u32, step: Step) {
        let event = Event { worker: self.worker, volume, step };
        if event.append(io::stdout()).is_err() {
            // Nobody reads the journal any more: the demo is dead, and so should be its workers.
            std::process::exit(1);
        }
    }

    /// Enters the part of the program in which a volume's worker must be alone.
    pub(crate) fn begin(&self, volume: u32, token: Option<FencingToken>) -> Section<'_> {
        self.tell(volume, Step::Begins { token });
        Section { journal: self, volume, done: false }
    }
}

/// Being in that part. Left by `done`, or by being dropped: on an error, or with a cancelled body.
pub(crate) struct Section<'a> {
    journal: &'a Journal,
    volume: u32,
    done: bool,
}

impl Section<'_> {
    pub(crate) fn write(&self, from: Content, to: Content) {
        self.journal.tell(self.volume, Step::Writes { from, to });
    }

    pub(crate) fn done(mut self, from: Content, to: Content) {
        self.done = true;
        self.journal.tell(self.volume, Step::Done { from, to });
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.journal.tell(self.volume, Step::GaveUp);
        }
    }
}
