//! Files that a test makes and then executes.
//!
//! A child that another check starts has a copy of each descriptor of this process until it executes its program. If this
//! process has a file open for writing at that moment, so has the child, and the kernel executes no file that somebody has
//! open for writing (`Text file busy`). On a busy machine the child may take long enough. So these files are written by a
//! process that has ended when these functions return.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a script that everybody may execute.
///
/// # Panics
///
/// If it cannot be written.
pub fn write_script(path: &Path, text: &str) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut writing = command.spawn().expect("coreutils are installed");
    let mut stdin = writing.stdin.take().expect("it is a pipe");
    stdin.write_all(text.as_bytes()).expect("it reads all of it");
    drop(stdin);
    assert!(writing.wait().is_ok_and(|status| status.success()), "{}", path.display());
}

/// Copies a program, with its mode.
///
/// # Panics
///
/// If it cannot be copied.
pub fn copy_program(from: &str, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", to.display());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::harness::Scratch;

    /// Other checks start processes all the time.
    #[test]
    fn what_was_written_can_be_executed() {
        let (scratch, is_over) = (Scratch::new("executable"), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        assert!(Command::new("true").status().is_ok_and(|status| status.success()));
                    }
                });
            }
            let script = scratch.join("script");
            let outcomes = (0..100).map(|_| {
                write_script(&script, "#!/bin/sh\nexit 7\n");
                Command::new(&script).status().map(|status| status.code())
            });
            let outcomes: Vec<_> = outcomes.collect();
            is_over.store(true, Ordering::Relaxed);
            for outcome in outcomes {
                assert_eq!(outcome.expect("nobody has it open"), Some(7));
            }
        });
    }
}
