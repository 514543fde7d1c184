//! The records of one client. Each object has a history file of its own, so that each object can be checked alone.
//!
//! Each record is written by one system call. So it is in the file even if the process is killed right after.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use coordination_history::{Event, Record, Writer, now};

use crate::plan::Target;

/// Writes the records of a client.
pub(crate) struct Diary {
    client: u32,
    attempts: AtomicU64,
    writers: Vec<Writer>,
}

/// One acquire or one claim. It records its events in the history of its object.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    diary: &'a Diary,
    index: usize,
    number: u64,
}

impl Diary {
    pub(crate) fn open(directory: &Path, client: u32, targets: &[Target]) -> std::io::Result<Self> {
        let writers = targets.iter().map(|target| Writer::open(file(directory, target)));
        Ok(Self {
            client,
            attempts: AtomicU64::new(0),
            writers: writers.collect::<Result<_, _>>()?,
        })
    }

    /// Begins a new attempt to acquire the object with this index, or to claim from it.
    pub(crate) fn attempt(&self, index: usize) -> Attempt<'_> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        Attempt { diary: self, index, number }
    }

    /// Records an event of another client in the histories of all objects, for instance that the client was killed.
    pub(crate) fn note_of_client(&self, client: u32, event: Event) {
        (0..self.writers.len()).for_each(|index| self.note(index, client, 0, event));
    }

    /// Records an event of this client that belongs to no attempt, in the history of the object with this index.
    pub(crate) fn note_of(&self, index: usize, event: Event) {
        self.note(index, self.client, 0, event);
    }

    fn note(&self, index: usize, client: u32, attempt: u64, event: Event) {
        let record = Record { at: now(), client, attempt, object: id(index), event };
        self.writers[index].append(&record).expect("the history is on a disk with room");
    }
}

impl Attempt<'_> {
    /// Records an event of this attempt at the present time.
    pub(crate) fn note(self, event: Event) {
        self.diary.note(self.index, self.diary.client, self.number, event);
    }
}

/// The id of the object with this index.
pub(crate) fn id(index: usize) -> u32 {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

/// The path of an object's history.
pub(crate) fn file(directory: &Path, target: &Target) -> PathBuf {
    directory.join(format!("{}.history", target.name))
}
