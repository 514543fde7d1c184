//! A history on disk, which several processes write together.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::codec::{self, Malformed, SIZE};
use crate::record::Record;

/// `CLOCK_MONOTONIC` in nanoseconds: one clock for all processes of a machine.
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

/// Appends records to a file; any number of threads and processes may do so at once.
///
/// A record is one `write` to a file opened with `O_APPEND`: records never mix, and what was appended is
/// there though the process is killed the moment after.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    /// Opens the history at `path`, or begins it. The standard library adds `O_CLOEXEC`.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { file: File::options().create(true).append(true).open(path)? })
    }

    /// Appends one record.
    ///
    /// # Errors
    ///
    /// It was not written, or not whole: the history is worthless from here on.
    pub fn append(&self, record: &Record) -> io::Result<()> {
        let bytes = codec::encode(record);
        // Not `write_all`: a second call would let another process write in between.
        let written = (&self.file).write(&bytes)?;
        if written == SIZE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// The history at `path`, in the order in which it was written.
///
/// A last record that is cut short is left out: whoever wrote it did not live to write it whole.
///
/// # Errors
///
/// [`Damage`]: the file cannot be read, or is not a history at some place.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Record>, Damage> {
    parse(&fs::read(path).map_err(Damage::Io)?)
}

/// The records that these bytes are, as [`read`] does it.
///
/// # Errors
///
/// [`Damage::Record`]: they are not a history at some place.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Record>, Damage> {
    let (whole, _torn) = bytes.as_chunks::<SIZE>();
    let records = whole.iter().enumerate().map(|(index, bytes)| {
        codec::decode(bytes).map_err(|why| Damage::Record { offset: index * SIZE, why })
    });
    records.collect()
}

/// A file is not a history.
#[derive(Debug)]
pub enum Damage {
    /// It cannot be read.
    Io(io::Error),
    /// There is no record where one should be.
    Record {
        /// In bytes from the start of the file.
        offset: usize,
        /// What is wrong there.
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
