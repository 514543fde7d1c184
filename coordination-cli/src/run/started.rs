//! What a command inherits is what whoever started us had set, and not what we need for ourselves.
//!
//! Working directory, umask, limits and descriptors pass through by themselves. Of signals three things do not: the mask, which we
//! need empty; SIGPIPE, which Rust's runtime ignores and its standard library resets; SIGCHLD, by which we hear of ends. They are
//! noted before `main`, and restored by a program that becomes the command: we ourselves, once more. Both are in `src/begin.c`.
//! Whoever was started as usual, with nothing blocked or ignored, has neither.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process;

use tokio::process::Command;

/// Where it is noted: what was blocked and what ignored, as two masks.
const STARTED: &str = "COORDINATION_STARTED";
/// How we are told to become the command.
const BECOME: &str = "COORDINATION_BECOME";

/// The word by which we are told to die of a signal.
const DIE: &str = "__die";

/// Dies of this signal, as whoever started us expects of what is killed by it: a shell's script ends then, too. Returns if the system
/// does not let us, or nothing here knows how.
///
/// As we receive the signal, and nothing safe gives that up, we become a program that does not: we ourselves, once more.
pub(crate) fn die(number: i32) {
    if cfg!(target_env = "gnu") {
        let _ = io::stdout().flush();
        let mut us = process::Command::new("/proc/self/exe");
        let _ = us.arg0("coordination").arg(DIE).arg(number.to_string()).exec();
    }
}

/// A command whose program and words these are.
pub(super) fn command(program: &Path, words: &[OsString]) -> Command {
    let mut command = match env::var_os(STARTED) {
        None => {
            let mut command = Command::new(program);
            command.arg0(&words[0]).args(&words[1..]);
            command
        }
        Some(state) => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(OsStr::new("coordination")).arg(program).args(words).env(BECOME, state);
            command
        }
    };
    command.env_remove(STARTED);
    command
}
