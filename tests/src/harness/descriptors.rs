//! A process that may have few descriptors.

use std::env;
use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::violation::why;
use super::{Launch, Scratch};

/// Set in the process that may have few: how many.
const INSIDE: &str = "COORDINATION_TEST_DESCRIPTORS";
/// Longer than any test here takes.
const LIMIT: Duration = Duration::from_secs(240);

/// Whether this process is a test that runs once more, with few descriptors.
pub(super) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs the body of the test that this thread is named by in a process of its own, which may have so many. `None`: it was run there.
///
/// # Panics
///
/// When it does.
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

/// From here on this process may have no more descriptors than this.
pub fn limit(most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).expect("fewer is allowed");
}

/// Takes all that are left.
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
