//! The process that holds what `coordination acquire` has acquired.
//!
//! It is ourselves, started once more under a name that no user types ([`HOLD`]). Until its caller, `coordination acquire`, has printed the handle, it
//! is of its caller's job, and ends with it. From then on it has a session of its own, nothing that others wait for open, and
//! ends:
//!
//! * when somebody asks for the release, by the [handle](Handle),
//! * when the process has ended for which it holds.
//!
//! No signal ends it then, but for SIGKILL: when a service is stopped, all of its processes are sent SIGTERM at once, and the script may take
//! its time to end.
//!
//! When the lock was lost, or held for as long as it may be, it stays: whoever asks for the release is to learn of that.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::process::ExitCode;
use std::time::Duration;
use std::{iter, thread};

use clap::Parser;
use coordination::Coordinator;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, setsid};
use rustix::stdio::dup2_stderr;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::alive::Process;
use super::child::{at, is_loss_before, lost};
use super::finish::{After, finish};
use super::former::{follow, is_within_reach, tell_end, told_if_lost};
use super::handle::{self, Answer, Handle};
use super::locks::Locks;
use super::reach::reach;
use super::signals::Signals;
use super::waiting::{Waited, wait};
use super::wanted::{Budget, Hold, Wanted};
use super::{Settling, is_on_one_host, not_run, settle_after, shorten_heartbeat};
use crate::args::{Acquire, Arguments, Command, Notice, Store};
use crate::exit::{self, Failure, Outcome, say};
use crate::runtime::block_on;
use crate::{settings, stderr};

/// Our first argument in this process; then comes [whom](word) it holds for, and what its caller was given.
pub(crate) const HOLD: &str = "__hold";
/// What the caller says when the handle is printed, and what it is answered when we hold on alone from then on.
pub(super) const PRINTED: u8 = b'p';
/// How often it is looked whether a process has ended, where the kernel does not tell.
const LOOK: Duration = Duration::from_millis(200);

/// What the caller is told, in a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// It is held. The tokens are there if they were asked for.
    Holds { handle: String, tokens: Vec<u64> },
    /// Nothing is held; the exit code.
    Ended(u8),
}

impl Said {
    fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// The two whose end ends the wait.
struct Caller {
    /// `coordination acquire`.
    front: UnixStream,
    whom: Process,
    end: oneshot::Receiver<()>,
}

/// The word that names a process, and no other that has its number later.
pub(super) fn word(whom: &Process) -> String {
    format!("{}-{}", whom.pid.as_raw_nonzero(), whom.started)
}

/// The process that this word names; `None`: it has ended.
pub(super) fn named(word: &OsStr) -> Option<Process> {
    let (pid, started) = word.to_str()?.split_once('-')?;
    let (pid, started): (i32, u64) = (pid.parse().ok()?, started.parse().ok()?);
    Pid::from_raw(pid).and_then(Process::of).filter(|process| process.started == started)
}

/// Holds what these words ask for, and tells stdin how that goes.
pub(crate) fn hold(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let whom = words.next().unwrap_or_default();
    let asked = Arguments::try_parse_from(iter::once("coordination".into()).chain(words));
    let Ok(Arguments { store, command: Command::Acquire(asked) }) = asked else {
        return ExitCode::from(exit::USAGE);
    };
    let front = io::stdin().as_fd().try_clone_to_owned();
    let ended = match &front {
        Ok(front) => front.try_clone().map_err(|error| not_started(&error)),
        Err(error) => Err(not_started(error)),
    };
    let ended = ended.and_then(|front| block_on(held(&asked, &store, &whom, front)));
    if let Err(failure) = &ended {
        failure.report();
    }
    stderr::finish();
    let code = ended.unwrap_or_else(|failure| failure.code);
    if let Ok(front) = front {
        // If it has gone by now, nobody wants to know.
        let _ = Socket::from(front).write_all(Said::Ended(code).line().as_bytes());
    }
    ExitCode::from(code)
}

fn not_started(error: &io::Error) -> Failure {
    Failure::system("cannot start the lock's holder", error)
}

async fn held(asked: &Acquire, store: &Store, whom: &OsStr, front: OwnedFd) -> Outcome<u8> {
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let mut signals = Signals::new()?;
    let mut caller = Caller::new(whom, front)?;
    // As a shell has it, before anything is waited for.
    handle::directory().map_err(|error| no_handle(&error))?;
    let budget = Budget::new(asked.wait);
    let lease = settings::lease(&config);
    let settling = Settling { asked: asked.settle, lease, is_quiet: store.quiet };
    let reaching = reach(config, asked.wait, budget, store.quiet);
    let coordinator = while_wanted(&mut caller, &mut signals, reaching).await?;
    let whom = caller.whom.clone();
    let obtaining = obtain(asked, &whom, &settling, &coordinator, budget);
    let obtained = while_wanted(&mut caller, &mut signals, obtaining).await;
    let after = if obtained.is_ok() { After::Work } else { After::Wait };
    let outcome = match obtained {
        Ok(hold) => keep(hold, asked, &coordinator, caller, &mut signals).await,
        Err(failure) => Err(failure),
    };
    finish(&coordinator, &outcome, after).await;
    outcome
}

impl Caller {
    fn new(whom: &OsStr, front: OwnedFd) -> Outcome<Self> {
        let whom = named(whom).ok_or_else(gone)?;
        let front = Socket::from(front);
        let front = front.set_nonblocking(true).and_then(|()| UnixStream::from_std(front));
        let front = front.map_err(|error| not_started(&error))?;
        let end = end_of(whom.clone()).map_err(|error| not_started(&error))?;
        Ok(Self { front, whom, end })
    }
}

/// Tells when this process has ended.
fn end_of(process: Process) -> io::Result<oneshot::Receiver<()>> {
    let (told, end) = oneshot::channel();
    let wait = move || {
        let file = pidfd_open(process.pid, PidfdFlags::empty()).ok();
        // After that: the number may have been another's by then.
        let mut has_ended = !process.is_alive();
        while !has_ended {
            has_ended = match &file {
                // The kernel's word: where no descriptor is left, nothing else can be read, which does not mean that it has ended.
                Some(file) => poll(&mut [PollFd::new(file, PollFlags::IN)], None) == Ok(1),
                None => {
                    thread::sleep(LOOK);
                    !process.is_alive()
                }
            };
        }
        drop(told);
    };
    thread::Builder::new().name("whom".to_owned()).spawn(wait)?;
    Ok(end)
}

/// Gives up when nobody wants it any more.
async fn while_wanted<T>(
    caller: &mut Caller,
    signals: &mut Signals,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        number = signals.ending() => Err(Failure::by_signal(number)),
        // It says nothing yet.
        _ = caller.front.read_u8() => Err(Failure::silent(exit::SYSTEM)),
        _ = &mut caller.end => Err(gone()),
        outcome = work => outcome,
    }
}

fn no_handle(error: &io::Error) -> Failure {
    Failure::system("cannot make a handle", error)
}

fn gone() -> Failure {
    Failure::new(exit::SYSTEM, "the process that the lock is for has ended")
}

/// Acquires it as `run` does: a command may still run whose lock was lost just now.
async fn obtain(
    asked: &Acquire,
    whom: &Process,
    settling: &Settling,
    coordinator: &Coordinator,
    budget: Budget,
) -> Outcome<Hold> {
    let is_quiet = settling.is_quiet;
    let label = asked.label.as_deref().unwrap_or_default();
    let locks = Locks::new(&asked.names, asked.shared, label, coordinator)?;
    let mut wanted = Wanted::Locks(locks);
    if !is_quiet && budget.left() != Some(Duration::ZERO) {
        warn_of_itself(&wanted, whom).await;
    }
    let mut hold = match wait(&mut wanted, coordinator.member_id(), budget, is_quiet).await? {
        Waited::Got(hold) => hold,
        Waited::Busy(what) => return Err(Failure::new(exit::BUSY, what)),
    };
    let settled = settle_after(&wanted, &mut hold, settling, coordinator).await;
    told_if_lost(settled, &hold, coordinator).await?;
    if is_on_one_host(coordinator) {
        follow(&wanted, &mut hold, is_quiet).await?;
    }
    Ok(hold)
}

/// Says so if it is to wait for what is held for the same process. That may be another subshell's, which will release it: so it is not
/// refused.
async fn warn_of_itself(wanted: &Wanted, whom: &Process) {
    for (handle, held) in handle::held_for(whom) {
        if let Ok(Some((what, _))) = wanted.held_around(&held).await {
            let (pid, handle) = (whom.pid.as_raw_nonzero(), handle.display());
            say(format_args!(
                "{what} is held for the same process, {pid}, until {handle} is released: who does not release it waits for itself"
            ));
        }
    }
}

/// Holds it until somebody asks for the release, or nobody can any more.
async fn keep(
    hold: Hold,
    asked: &Acquire,
    coordinator: &Coordinator,
    mut caller: Caller,
    signals: &mut Signals,
) -> Outcome<u8> {
    let us = coordinator.member_id();
    let handle = match hand_over(&hold, asked, us, &mut caller, signals).await {
        Ok(handle) => handle,
        Err(failure) => {
            // Whoever wanted it has not begun.
            not_run(Some(hold)).await;
            return Err(failure);
        }
    };
    let end = asked.max_hold.and_then(|limit| Instant::now().checked_add(limit));
    let (mut hold, mut why_lost) = (Some(hold), None);
    // Signals are still received, in place of ending us, and nobody looks at them.
    loop {
        tokio::select! {
            biased;
            _ = &mut caller.end => {
                // First: to whoever asks now nothing is held any more, which is no loss.
                drop(handle);
                let_go(hold).await;
                return Ok(0);
            }
            stream = handle.asked() => {
                let answer = release(hold, why_lost, coordinator).await;
                handle.close(stream, &answer).await;
                return Ok(0);
            }
            reason = lost(hold.as_ref()), if why_lost.is_none() => {
                let names = hold.as_ref().map(Hold::shown).unwrap_or_default();
                why_lost = Some(format!("lost {names}: {reason}"));
                tell_loss(&caller.whom, asked.on_lost);
            }
            () = at(end), if why_lost.is_none() => {
                // First: others may have it before the store has answered us.
                tell_loss(&caller.whom, asked.on_lost);
                let_go(hold.take()).await;
                why_lost = Some("the lock was released when --max-hold was over".to_owned());
            }
        }
    }
}

/// Leaves our caller's job, and lets it print the handle.
async fn hand_over(
    hold: &Hold,
    asked: &Acquire,
    us: &str,
    caller: &mut Caller,
    signals: &mut Signals,
) -> Outcome<Handle> {
    let made = Handle::new(&caller.whom, &hold.held_by(us));
    let made = made.and_then(|handle| leave_job().map(|()| handle));
    let handle = made.map_err(|error| no_handle(&error))?;
    let tokens = hold.each().into_iter().map(|(_, token)| token.value());
    let tokens = tokens.filter(|_| asked.tokens).collect();
    let said = Said::Holds { handle: handle.name(), tokens };
    // If it cannot be told, it has ended.
    let _ = caller.front.write_all(said.line().as_bytes()).await;
    let printed = tokio::select! {
        biased;
        number = signals.ending() => return Err(Failure::by_signal(number)),
        printed = caller.front.read_u8() => printed,
        _ = &mut caller.end => return Err(gone()),
    };
    printed.map_err(|_| Failure::silent(exit::SYSTEM))?;
    // It may have taken long to print it, or we have stood still.
    if !hold.is_held() {
        return Err(Failure::silent(exit::LOST));
    }
    // If nobody hears it, the caller was killed when the handle was printed: whoever has read that may go by it.
    let _ = caller.front.write_all(&[PRINTED]).await;
    Ok(handle)
}

/// What a terminal sends to the job is not for us any more, and whoever reads what our caller writes, or unmounts where it is, does not
/// wait for us.
fn leave_job() -> io::Result<()> {
    env::set_current_dir("/")?;
    // We do not lead our group, which is all that could be against it.
    let _ = setsid();
    stderr::finish();
    let null = File::options().write(true).open("/dev/null")?;
    dup2_stderr(null).map_err(io::Error::from)
}

/// Lets go of it while what was done under it may go on: whoever comes next waits as after a command that was killed.
async fn let_go(hold: Option<Hold>) {
    if let Some(hold) = hold {
        // It ends with the session in any case.
        let _ = hold.release().await;
    }
}

/// Lets go of it when nothing is done under it any more.
async fn release(
    hold: Option<Hold>,
    why_lost: Option<String>,
    coordinator: &Coordinator,
) -> Answer {
    let Some(mut hold) = hold else { return why_lost.map_or(Answer::Again, Answer::Lost) };
    let (granted, was_held) = (hold.granted(), hold.is_held());
    if was_held || is_within_reach(coordinator).await {
        hold.command_has_ended().await;
    }
    let released = hold.release().await;
    if !was_held || released.is_err() {
        tell_end(coordinator, &granted).await;
    }
    match (released, why_lost) {
        (_, Some(why)) => Answer::Lost(why),
        (Ok(()), None) => Answer::Released,
        (Err(error), None) if is_loss_before(&error, was_held) => Answer::Lost(error.to_string()),
        (Err(error), None) => Answer::Unconfirmed(error.to_string()),
    }
}

fn tell_loss(whom: &Process, how: Notice) {
    let signal = match how {
        Notice::Ignore => return,
        Notice::Hup => Signal::HUP,
        Notice::Int => Signal::INT,
        Notice::Term => Signal::TERM,
        Notice::Kill => Signal::KILL,
        Notice::Usr1 => Signal::USR1,
        Notice::Usr2 => Signal::USR2,
    };
    whom.signal(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_one_process_and_no_later_one() {
        let us = Process::of(rustix::process::getpid()).expect("we live");
        assert!(named(OsStr::new(&word(&us))).is_some_and(|named| named.is_same(&us)));
        let later = Process { started: us.started + 1, ..us };
        for word in [word(&later).as_str(), "", "1", "x-1", "0-0"] {
            assert!(named(OsStr::new(word)).is_none(), "{word}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let process = Process::of(Pid::from_child(&child)).expect("it lives");
        let mut end = end_of(process).expect("a thread");
        assert!(end.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        child.kill().and_then(|()| child.wait()).expect("ours");
        assert!(end.await.is_err());
    }
}
