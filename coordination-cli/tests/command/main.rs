//! The command as its users meet it: real processes, on a directory and on a server.
//!
//! What is in [`gate`] is run by `tests/run`, what is in [`soak`] by `tests/soak`.

mod balancer;
mod broken;
mod browser;
mod chaos;
mod crontab;
mod gate;
mod http;
mod kept_apart;
mod killed;
mod soak;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use coordination_tests::harness::{Scratch, wait_until, write_script};
use rustix::process::{Pid, Signal};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

/// A store for this test alone, in a directory of its own.
struct Store {
    scratch: Scratch,
    url: String,
}

impl Store {
    /// On one host.
    fn file() -> Self {
        let scratch = Scratch::new("cli");
        let url = format!("file://{}", scratch.join("locks").display());
        Self { scratch, url }
    }

    /// On a server.
    fn at(url: String) -> Self {
        Self { scratch: Scratch::new("cli"), url }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// The command with these arguments, on this store.
    fn coordination<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Command {
        let mut command = plain();
        command.env("COORDINATION_URL", &self.url).args(words);
        command
    }

    /// `coordination run`, to its end; words are split at blanks.
    fn run(&self, words: &str) -> Output {
        output(self.coordination(["run"]).args(words.split(' ')))
    }

    /// The same in the background.
    fn start(&self, words: &str) -> Wrapper {
        Wrapper::start(self.coordination(["run"]).args(words.split(' ')))
    }

    /// A wrapper whose command runs.
    fn runs(&self, words: &str) -> Wrapper {
        self.running(words).0
    }

    /// The same, and the command's process id.
    fn running(&self, words: &str) -> (Wrapper, String) {
        let name = words.replace([' ', ':'], "-");
        let started = self.path(&format!("started{name}"));
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let command = self.script(&format!("runs{name}"), &text);
        let wrapper = self.start(&format!("{words} -- {command}"));
        let id = written(&started);
        (wrapper, id)
    }

    /// A script to run, as a word.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        write_script(&path, text);
        path.display().to_string()
    }
}

/// Without settings of whoever runs the tests, and receiving what he ignores: a shell's background job ignores SIGINT.
fn plain() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_coordination")]);
    for variable in ["COORDINATION_URL", "COORDINATION_CONFIG", "XDG_CONFIG_HOME", "HOME"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("it was built")
}

/// As a shell has it: 128 + n where it died of signal n.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| Some(128 + status.signal()?))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A wrapper that runs; killed when dropped.
struct Wrapper(Child);

impl Wrapper {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().expect("it was built"))
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.0);
        rustix::process::kill_process(id, signal).expect("it runs");
    }

    /// Waits for its end.
    fn status(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(LONG, || {
            status = self.0.try_wait().expect("it is our child");
            status.is_some()
        });
        status.expect("it should end")
    }

    fn code(&mut self) -> Option<i32> {
        code(self.status())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("it is our child").is_none()
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a file has something in it, and answers that.
fn written(path: &Path) -> String {
    let mut text = String::new();
    let is_there = wait_until(LONG, || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    });
    assert!(is_there, "nothing was written to {}", path.display());
    text
}

/// Whether the process of this number is there, dead ones that nobody has waited for left out.
fn is_alive(id: &str) -> bool {
    state(id).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// What it does: `S` sleeps, `T` stands still.
fn state(id: &str) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}
