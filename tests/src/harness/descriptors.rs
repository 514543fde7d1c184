//! Runs a test in a process that may have only few file descriptors.

use std::fs::File;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::once_more::once_more_with;

/// The environment variable that is set in the child process which runs the test with few descriptors.
const INSIDE: &str = "COORDINATION_TEST_DESCRIPTORS";

/// Runs the current test again, in a child process that may have at most `most` file descriptors. Returns what
/// [`once_more_with`] returns.
///
/// # Panics
///
/// If the test fails in the child.
pub fn with_descriptors<T>(most: u64, body: impl FnOnce() -> T) -> Option<T> {
    once_more_with(INSIDE, || {
        limit(most);
        body()
    })
}

/// Sets how many file descriptors this process may have: fewer or more than before.
///
/// # Panics
///
/// If the system allows fewer, by its hard limit.
pub fn limit(most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum });
    set.unwrap_or_else(|error| panic!("{most} descriptors, of at most {maximum:?}: {error}"));
}

/// Opens files until no descriptor is left, and returns the files.
pub fn take_all() -> Vec<File> {
    let mut taken = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                return taken;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
