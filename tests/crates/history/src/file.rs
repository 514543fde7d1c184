//! A history in a file, to which several processes append.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::codec::{self, Malformed, SIZE};
use crate::record::Record;

/// The time of `CLOCK_MONOTONIC` in nanoseconds. All processes of a machine read the same clock.
///
/// # Panics
///
/// Never on Linux, where the clock starts near zero at boot.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the clock starts at zero");
    let nanos = u64::try_from(now.tv_nsec).expect("a fraction is not negative");
    seconds * 1_000_000_000 + nanos
}

/// Appends records to a file. Any number of threads and processes may do so at once.
///
/// Each record is written by one call of `write`, and the file is opened with `O_APPEND`. So records of different
/// writers do not mix, and a record that was appended stays in the file even if the process is killed right after.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    /// Opens the history at `path`, or creates it. Child processes do not inherit the open file, because the standard
    /// library sets `O_CLOEXEC`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { file: File::options().create(true).append(true).open(path)? })
    }

    /// Appends one record.
    ///
    /// # Errors
    ///
    /// If the record was not written, or only a part of it. If only a part was written, the file cannot be read as a
    /// history any more.
    pub fn append(&self, record: &Record) -> io::Result<()> {
        let bytes = codec::encode(record);
        // `write_all` must not be used here: it would write the rest of an incomplete record by a second call, and
        // another process could append its own record between the two calls.
        let written = (&self.file).write(&bytes)?;
        if written == SIZE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Reads the history at `path`, in the order in which it was written.
///
/// An incomplete last record is left out, because its writer was killed while it wrote the record.
///
/// # Errors
///
/// [`Damage`] if the file cannot be read, or has bytes that are not a record.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Record>, Damage> {
    parse(&fs::read(path).map_err(Damage::Io)?)
}

/// Like [`read`], from bytes in memory.
///
/// # Errors
///
/// [`Damage::Record`] if any 64 bytes at a place where a record should be are not a record.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Record>, Damage> {
    let (whole, _torn) = bytes.as_chunks::<SIZE>();
    let records = whole.iter().enumerate().map(|(index, bytes)| {
        codec::decode(bytes).map_err(|why| Damage::Record { offset: index * SIZE, why })
    });
    records.collect()
}

/// Why a file is not a history.
#[derive(Debug)]
pub enum Damage {
    /// The file cannot be read.
    Io(io::Error),
    /// Some bytes where a record should be are not a record.
    Record {
        /// Where these bytes begin, counted from the start of the file.
        offset: usize,
        /// Why these bytes are not a record.
        why: Malformed,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) => f.write_str("the history cannot be read"),
            Self::Record { offset, why } => write!(f, "the history is damaged at {offset}: {why}"),
        }
    }
}

impl std::error::Error for Damage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Record { .. } => None,
        }
    }
}
