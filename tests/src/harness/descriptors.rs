//! Runs a test in a process that may have only few file descriptors.

use std::env;
use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::violation::why;
use super::{Launch, Scratch};

/// The environment variable that is set in the child process which runs the test with few descriptors.
const INSIDE: &str = "COORDINATION_TEST_DESCRIPTORS";
/// How long the child process may run. This is longer than any such test takes.
const LIMIT: Duration = Duration::from_secs(240);

/// Whether this process is the child that [`with_descriptors`] started.
pub(super) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs the current test again, in a child process that may have at most `most` file descriptors. The name of this
/// thread is the name of the test. In the child this function runs `body` and returns its result. In the parent it
/// returns `None` after the test has passed in the child.
///
/// # Panics
///
/// If the test fails in the child.
pub fn with_descriptors<T>(most: u64, body: impl FnOnce() -> T) -> Option<T> {
    if is_inside() {
        limit(most);
        return Some(body());
    }
    let thread = std::thread::current();
    let name = thread.name().expect("tests are named");
    let scratch = Scratch::new("descriptors");
    let test = env::current_exe().expect("the test runs");
    let words = [test.to_str().expect("cargo's names are text"), "--exact", name, "--nocapture"];
    let launch = Launch::new(words[0], scratch.join("test.log")).args(&words[1..]);
    let child = launch.env(INSIDE, "1").start();
    let status = child.wait(LIMIT);
    let log = child.log();
    println!("{log}");
    assert!(
        status.is_some_and(|status| status.success()),
        "{name} with {most}: {status:?}, {}",
        why(&log)
    );
    assert!(log.contains("1 passed"), "there is no test called {name}");
    None
}

/// Limits this process to `most` file descriptors.
pub fn limit(most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).expect("fewer is allowed");
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
