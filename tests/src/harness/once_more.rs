//! Runs a test once more in a child process, with an environment variable.

use std::env;
use std::time::Duration;

use super::violation::why;
use super::{Launch, Scratch};

/// The environment variable with which the library does without what only Linux has (`backend/file/system/` of the
/// library).
pub const PLAIN: &str = "COORDINATION_TEST_PLAIN";
/// Set in each child process beside the variable that a test asks for. Somebody who has set that variable in a shell still gets the
/// child, and in the parent all that [`rerun`](super::rerun) does.
const INSIDE: &str = "COORDINATION_TEST_ONCE_MORE";
/// How long the child process may run. This is longer than any such test takes.
const LIMIT: Duration = Duration::from_secs(240);

/// Whether this process is a child that [`once_more_with`] started.
pub(super) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs the current test again, in a child process in which this environment variable is set. The name of this thread is
/// the name of the test. In the child this function runs `body` and returns its result. In the parent it returns `None`
/// after the test has passed in the child.
///
/// # Panics
///
/// If the test fails in the child.
pub fn once_more_with<T>(variable: &str, body: impl FnOnce() -> T) -> Option<T> {
    if is_inside() {
        return Some(body());
    }
    let thread = std::thread::current();
    let name = thread.name().expect("tests are named");
    let scratch = Scratch::new("once-more");
    let test = env::current_exe().expect("the test runs");
    let words = [test.to_str().expect("cargo's names are text"), "--exact", name, "--nocapture"];
    let launch = Launch::new(words[0], scratch.join("test.log")).args(&words[1..]);
    let child = launch.env(INSIDE, "1").env(variable, "1").start();
    let status = child.wait(LIMIT);
    let log = child.log();
    println!("{log}");
    assert!(
        status.is_some_and(|status| status.success()),
        "{name} with {variable}: {status:?}, {}",
        why(&log)
    );
    assert!(log.contains("1 passed"), "there is no test called {name}");
    None
}
