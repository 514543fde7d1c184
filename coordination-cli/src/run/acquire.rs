//! `coordination acquire`: a lock for a shell script, which a process in the background holds until `coordination release`.
//!
//! That process, the [holder](super::holder), does all the work. We start it, print the handle that it tells us, and end. Whoever ends us
//! before that ends the holder, too: it goes on alone only after our word that the handle is printed, and answers that.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, getppid, test_kill_process};

use super::alive::{Place, Process};
use super::holder::{HOLD, PRINTED, Said, word};
use crate::args::{Acquire, Notice, Store};
use crate::exit::{self, Failure, Outcome, shown};

const NOT_OURS: &str = "what has started us is not of our session, and may live for ever";
const UNKNOWN: &str = "nothing can be read of what has started us";
/// Where our own descriptors have names: those of the holder are others.
const DESCRIPTORS: [&str; 4] = ["/dev/fd", "/dev/stdin", "/proc/self", "/proc/thread-self"];
/// Programs that run another one and end with it: the lock would be let go of at once.
const PASSING: [&str; 18] = [
    "coordination",
    "doas",
    "find",
    "flock",
    "ltrace",
    "nsenter",
    "parallel",
    "pkexec",
    "runuser",
    "setpriv",
    "setsid",
    "strace",
    "su",
    "sudo",
    "time",
    "timeout",
    "unshare",
    "xargs",
];
/// Programs whose forks are workers, which live and die by themselves. Whatever else is forked counts as a subshell.
const OF_WORKERS: [&str; 8] = ["apache", "httpd", "perl", "php", "pypy", "python", "ruby", "uwsgi"];

pub(crate) fn acquire(asked: &Acquire, store: &Store) -> Outcome<u8> {
    if let Some(config) = store.config.as_deref().filter(|path| is_by_descriptor(path)) {
        let what = "the lock's holder reads it, and inherits no descriptor: it has to be a file";
        return Err(Failure::usage(format!("--config {}: {what}", config.display())));
    }
    let whom = whom(asked.for_pid)?;
    let is_told = asked.on_lost != Notice::Ignore;
    if is_told && test_kill_process(whom.pid) == Err(Errno::PERM) {
        let pid = whom.pid.as_raw_nonzero();
        let what = format!("--on-lost: process {pid} is another user's, and takes no signal of us");
        return Err(Failure::usage(what));
    }
    let (mut process, mut holder) = start(&whom)?;
    let mut line = String::new();
    let read = BufReader::new(&holder).read_line(&mut line);
    match read.ok().and_then(|_| serde_json::from_str::<Said>(&line).ok()) {
        Some(Said::Holds { handle, tokens }) => {
            let tokens: String = tokens.iter().map(|token| format!(" {token}")).collect();
            if !shown(&format!("{handle}{tokens}\n"))? {
                return Err(Failure::new(exit::SYSTEM, "nobody reads the handle"));
            }
            // It may be about to give up: without its answer nothing is held.
            let mut answer = [0];
            let kept = holder.write_all(&[PRINTED]).and_then(|()| holder.read_exact(&mut answer));
            match kept.is_ok() && answer == [PRINTED] {
                true => Ok(0),
                false => {
                    let what =
                        "before the handle was printed the lock was lost, or its holder has ended";
                    Err(Failure::new(exit::SYSTEM, what))
                }
            }
        }
        // It has said why.
        Some(Said::Ended(code)) => {
            let _ = process.wait();
            Err(Failure::silent(code))
        }
        None => {
            let _ = process.wait();
            Err(Failure::new(exit::SYSTEM, "the lock's holder was killed"))
        }
    }
}

fn is_by_descriptor(path: &Path) -> bool {
    DESCRIPTORS.iter().any(|name| path.starts_with(name))
}

/// Whose end ends the hold.
fn whom(pid: Option<i32>) -> Outcome<Process> {
    match pid {
        Some(pid) => Pid::from_raw(pid)
            .and_then(Process::of)
            .ok_or_else(|| Failure::usage(format!("--for-pid: no process {pid} lives"))),
        None => shell(),
    }
}

/// The shell that has started us. A subshell may end with the next line, as that of `$(…)` does, so it counts as its shell.
fn shell() -> Outcome<Process> {
    let started = Place::of_us().zip(getppid().and_then(Process::of));
    let (us, mut shell) = started.ok_or_else(|| unknown(UNKNOWN))?;
    if PASSING.contains(&shell.name.as_str()) {
        return Err(unknown(&format!("`{}` has started us, and ends when we do", shell.name)));
    }
    // A subshell would not be known from a shell.
    if !shell.has_known_program() {
        return Err(unknown(UNKNOWN));
    }
    while !is_of_workers(&shell.program())
        && let Some(before) = shell.parent().filter(|before| shell.is_fork_of(before))
    {
        shell = before;
    }
    // If the shell was killed just now, we are the child of one who ends with the host.
    if shell.place.session == us.session { Ok(shell) } else { Err(unknown(NOT_OURS)) }
}

fn unknown(why: &str) -> Failure {
    let how = "name the process by --for-pid, as in --for-pid $$";
    Failure::usage(format!("for whom is the lock? {why}: {how}"))
}

fn is_of_workers(program: &str) -> bool {
    OF_WORKERS.iter().any(|name| program.starts_with(name))
}

/// The holder, and our end of what it reads as its stdin.
fn start(whom: &Process) -> Outcome<(Child, UnixStream)> {
    let failed = |error: io::Error| Failure::system("cannot start the lock's holder", &error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut holder = Command::new("/proc/self/exe");
    // It reads our words once more.
    holder.arg0("coordination").arg(HOLD).arg(word(whom)).args(env::args_os().skip(1));
    holder.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let process = holder.spawn().map_err(failed)?;
    Ok((process, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_descriptors_are_known() {
        for (path, is_one) in [
            ("/dev/fd/63", true),
            ("/proc/self/fd/3", true),
            ("/dev/stdin", true),
            ("/dev/fdx", false),
            ("dev/fd/63", false),
            ("/etc/coordination/config.toml", false),
        ] {
            assert_eq!(is_by_descriptor(Path::new(path)), is_one, "{path}");
        }
    }

    #[test]
    fn a_worker_is_no_subshell() {
        for program in ["python3.12", "perl", "php-fpm8.2", "apache2", "ruby3.1"] {
            assert!(is_of_workers(program), "{program}");
        }
        for program in ["sh", "dash", "bash", "busybox", "zsh", "ksh93", ""] {
            assert!(!is_of_workers(program), "{program}");
        }
    }
}
