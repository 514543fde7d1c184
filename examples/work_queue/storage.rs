//! The resource that the jobs are about: it takes the work of one claim for each job, told by its token, and refuses every other.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A job as it is sent to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) job: u32,
    pub(crate) token: u64,
    pub(crate) worker: u32,
}

/// The job was done under the token of another claim.
#[derive(Debug)]
pub(crate) struct Refused {
    request: Request,
    done: Request,
}

pub(crate) struct Storage {
    directory: PathBuf,
}

impl Storage {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Does the job. A worker may send it again under the same token, since it may not have heard the answer.
    pub(crate) fn resize(&self, request: Request) -> Result<(), Refused> {
        // Comparing the token and doing the job are one step: the file is locked until both are done.
        let path = self.directory.join("done");
        let file = OpenOptions::new().create(true).append(true).open(&path).expect("it is ours");
        file.lock().expect("nobody keeps it for long");
        match read(&path).into_iter().find(|done| done.job == request.job) {
            Some(done) if done.token == request.token => Ok(()),
            Some(done) => {
                append(&self.directory.join("refused"), request);
                Err(Refused { request, done })
            }
            None => {
                append(&path, request);
                Ok(())
            }
        }
    }

    pub(crate) fn done(&self) -> Vec<Request> {
        read(&self.directory.join("done"))
    }

    pub(crate) fn refused(&self) -> Vec<Request> {
        read(&self.directory.join("refused"))
    }
}

/// Adds a line to a file.
pub(crate) fn append(path: &Path, request: Request) {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{request}\n").as_bytes()));
    written.expect("there is room");
}

/// What was added to a file.
pub(crate) fn read(path: &Path) -> Vec<Request> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("only whole lines are added")).collect()
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.job, self.token, self.worker)
    }
}

impl FromStr for Request {
    type Err = std::num::ParseIntError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let mut words = line.split(' ').map(|word| word.parse::<u64>());
        let mut number = || words.next().unwrap_or_else(|| "".parse());
        let (job, token, worker) = (number()?, number()?, number()?);
        Ok(Self { job: job as u32, token, worker: worker as u32 })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, done } = self;
        write!(
            f,
            "job {} under token {} is refused: worker {} has done it under token {}",
            request.job, request.token, done.worker, done.token
        )
    }
}
