//! The signals that are passed on, and those that end a wait.

use std::fs;
use std::future::poll_fn;
use std::iter;
use std::process::Stdio;
use std::task::{Context, Poll, Waker};

use coordination::Coordinator;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

use super::alive::Place;
use super::finish::{After, finish};
use crate::exit::{Failure, Outcome};

pub(super) const HUP: i32 = 1;
pub(super) const INT: i32 = 2;
pub(super) const QUIT: i32 = 3;
pub(super) const TERM: i32 = 15;
pub(super) const CONT: i32 = 18;
pub(super) const TSTP: i32 = 20;
pub(super) const TTIN: i32 = 21;
pub(super) const TTOU: i32 = 22;
const USR1: i32 = 10;
const USR2: i32 = 12;
const URG: i32 = 23;
const XFSZ: i32 = 25;
const WINCH: i32 = 28;
/// The last one of Linux.
const LAST: i32 = 64;
/// Those that we leave as they are: they tell of a fault of our own (4, 7, 8, 11), cannot be received (9, 19), are no message to us but
/// of the kernel about pipes, children and terminals (13, 17, 21, 22), or are the C library's own (32, 33).
const LEFT: [i32; 12] = [4, 7, 8, 9, 11, 13, 17, 19, 21, 22, 32, 33];

/// Receives signals instead of dying of them.
pub(crate) struct Signals(Vec<(i32, unix::Signal)>);

impl Signals {
    /// Those that were ignored when we were started stay so, as for `nohup`.
    pub(crate) fn new() -> Outcome<Self> {
        let ignored = mask("SigIgn:");
        let is_wanted = |number: &i32| !LEFT.contains(number) && !has(ignored, *number);
        let receive = |number| Ok((number, unix::signal(SignalKind::from_raw(number))?));
        let signals: std::io::Result<_> = (1..=LAST).filter(is_wanted).map(receive).collect();
        signals.map(Self).map_err(|error| Failure::system("cannot receive signals", &error))
    }

    pub(super) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            // That a file may not grow is told by the error of who writes it.
            let mut came = self.0.iter_mut().filter_map(|(number, signal)| {
                let has_come = matches!(signal.poll_recv(context), Poll::Ready(Some(())));
                (has_come && *number != XFSZ).then_some(*number)
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// One that has come so far of those that end who runs one command after the other.
    pub(super) fn end(&mut self) -> Option<i32> {
        let mut context = Context::from_waker(Waker::noop());
        let ends =
            self.0.iter_mut().filter(|(number, _)| matches!(*number, HUP | INT | QUIT | TERM));
        let mut came = ends.filter_map(|(number, signal)| {
            matches!(signal.poll_recv(&mut context), Poll::Ready(Some(()))).then_some(*number)
        });
        came.next()
    }

    /// The next one of those that end us while there is no command yet.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            match self.next().await {
                TSTP if can_go_on() => stop_ourselves(),
                TSTP | CONT | URG | WINCH | USR1 | USR2 => {}
                number => return number,
            }
        }
    }
}

/// What only looks, until it ends or is ended by a signal; the coordinator is stopped then.
pub(crate) async fn until_stopped(
    coordinator: &Coordinator,
    work: impl Future<Output = Outcome<u8>>,
) -> Outcome<u8> {
    let mut signals = Signals::new()?;
    let outcome = tokio::select! {
        number = signals.ending() => Err(Failure::by_signal(number)),
        outcome = work => outcome,
    };
    finish(coordinator, &outcome, After::Work).await;
    outcome
}

/// Whether there is a shell that could let us go on; without one, the kernel does nothing at Ctrl-Z, and nor do we.
///
/// It is the first of our ancestors that is not of our group, and has to be of our session.
pub(super) fn can_go_on() -> bool {
    let Some(us) = Place::of_us() else { return false };
    let ancestors = iter::successors(us.of_parent(), |ancestor| ancestor.of_parent());
    let mut ours = ancestors.take_while(|ancestor| ancestor.session == us.session);
    ours.any(|ancestor| ancestor.group != us.group)
}

/// Whether a terminal sends this to all of its foreground.
pub(super) fn is_by_terminal(number: i32) -> bool {
    matches!(number, INT | QUIT | TSTP | WINCH)
}

/// Sends a signal that has no name, as real-time signals have none.
///
/// By a shell, whose word for it is as old as the signals: there is no other way without unsafe code.
pub(super) fn send_unnamed(number: i32, whom: Pid, is_single: bool) {
    let group = if is_single { "" } else { "-" };
    let words = format!("kill -s {number} -- {group}{}", whom.as_raw_nonzero());
    let mut shell = tokio::process::Command::new("/bin/sh");
    shell.args(["-c", &words]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // It is waited for as the orphans are.
    let _ = shell.spawn();
}

/// What Ctrl-Z does with who does not catch it.
pub(super) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Whether this signal is ignored, as it was when we were started.
pub(super) fn is_ignored(number: i32) -> bool {
    has(mask("SigIgn:"), number)
}

/// Whether our first thread does not receive this signal.
pub(super) fn is_blocked(number: i32) -> bool {
    has(mask("SigBlk:"), number)
}

fn has(mask: u64, number: i32) -> bool {
    mask >> (number - 1) & 1 == 1
}

/// A mask of signals, as the kernel shows it.
fn mask(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
