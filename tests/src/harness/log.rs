//! A history that several processes write, on one clock.
//!
//! The clock is `CLOCK_MONOTONIC`, the same for all processes of a machine, so the records of two
//! processes can be ordered. Each record is one `write` of one line to a file opened with
//! `O_APPEND`: records never mix, and a process killed between two of them leaves a whole history.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Nanoseconds on the clock shared by all processes of this machine.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the clock starts at zero");
    let nanos = u64::try_from(now.tv_nsec).expect("a fraction is not negative");
    seconds * 1_000_000_000 + nanos
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When, by [`now_ns`].
    pub t_ns: u64,
    /// The process that wrote it.
    pub pid: u32,
    /// The client within the process.
    pub worker: String,
    /// What happened: `acquired`, `released`, `lost`…
    pub event: String,
    /// To which lock, group or election.
    pub name: String,
    /// The fencing token, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Whatever else the check needs.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
}

/// Appends records to a history; may be shared between threads.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    worker: String,
}

impl Recorder {
    /// Appends to the history at `path`, as `worker`.
    ///
    /// # Panics
    ///
    /// When the file cannot be opened.
    pub fn open(path: impl AsRef<Path>, worker: &str) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the history can be opened");
        Self { file, worker: worker.to_owned() }
    }

    /// Records `event` as of now.
    pub fn record(&self, event: &str, name: &str, token: Option<u64>, extra: Value) {
        self.record_at(now_ns(), event, name, token, extra);
    }

    /// Records `event` as of `t_ns`, for a moment that must be taken before the call or after it.
    ///
    /// # Panics
    ///
    /// When the record cannot be written whole: the history would be worthless.
    pub fn record_at(&self, t_ns: u64, event: &str, name: &str, token: Option<u64>, extra: Value) {
        let record = Record {
            t_ns,
            pid: std::process::id(),
            worker: self.worker.clone(),
            event: event.to_owned(),
            name: name.to_owned(),
            token,
            extra,
        };
        let mut line = serde_json::to_vec(&record).expect("a record is plain data");
        line.push(b'\n');
        // Not `write_all`: a second call would let another process write in between.
        let written = (&self.file).write(&line).expect("the history is writable");
        assert_eq!(written, line.len(), "a record was cut short");
    }
}

/// The history at `path`, in order of time; empty when nobody has opened it.
///
/// # Panics
///
/// When a line is not a record.
pub fn read(path: impl AsRef<Path>) -> Vec<Record> {
    let history = fs::read_to_string(path).unwrap_or_default();
    let mut records: Vec<Record> = history
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is a record"))
        .collect();
    // Stable: records of equal time stay in the order they were written.
    records.sort_by_key(|record| record.t_ns);
    records
}
