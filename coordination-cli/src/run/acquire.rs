//! `coordination acquire`: a lock for a shell script, which a process in the background holds until `coordination release`.
//!
//! That process, the [holder](super::holder), does all the work. We start it, print the handle that it tells us, and end. Whoever ends us
//! before that ends the holder, too: it goes on alone only after our word that the handle is printed.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, getppid};

use super::alive::{Place, Process};
use super::holder::{HOLD, PRINTED, Said, word};
use crate::args::Acquire;
use crate::exit::{self, Failure, Outcome, shown};

const NO_SHELL: &str = "for whom is the lock? What has started us is not of our session, and may live for ever: name the \
                        process by --for-pid, as in --for-pid $$";

pub(crate) fn acquire(asked: &Acquire) -> Outcome<u8> {
    let (mut process, mut holder) = start(&whom(asked.for_pid)?)?;
    let mut line = String::new();
    let read = BufReader::new(&holder).read_line(&mut line);
    match read.ok().and_then(|_| serde_json::from_str::<Said>(&line).ok()) {
        Some(Said::Holds { handle, tokens }) => {
            let tokens: String = tokens.iter().map(|token| format!(" {token}")).collect();
            if !shown(&format!("{handle}{tokens}\n"))? {
                return Err(Failure::new(exit::SYSTEM, "nobody reads the handle"));
            }
            let told = holder.write_all(&[PRINTED]);
            told.map_err(|error| Failure::system("the lock's holder has ended", &error))?;
            Ok(0)
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

/// Whose end ends the hold.
fn whom(pid: Option<i32>) -> Outcome<Process> {
    match pid {
        Some(pid) => Pid::from_raw(pid)
            .and_then(Process::of)
            .ok_or_else(|| Failure::usage(format!("--for-pid: no process {pid} lives"))),
        None => shell().ok_or_else(|| Failure::usage(NO_SHELL)),
    }
}

/// The shell that has started us. A subshell may end with the next line, as that of `$(…)` does, so it counts as its shell.
fn shell() -> Option<Process> {
    let us = Place::of_us()?;
    let mut shell = getppid().and_then(Process::of)?;
    while let Some(before) = shell.parent().filter(|before| shell.is_fork_of(before)) {
        shell = before;
    }
    // If the shell was killed just now, we are the child of one who ends with the host.
    (shell.place.session == us.session).then_some(shell)
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
