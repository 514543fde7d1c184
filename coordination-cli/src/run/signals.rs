//! The signals that are passed on, and those that end a wait.

use std::fs;
use std::future::poll_fn;
use std::iter;
use std::task::Poll;

use coordination::Coordinator;
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

use super::alive::Place;
use crate::exit::{self, Failure, Outcome};

pub(super) const HUP: i32 = 1;
pub(super) const INT: i32 = 2;
pub(super) const QUIT: i32 = 3;
pub(super) const TERM: i32 = 15;
pub(super) const CONT: i32 = 18;
pub(super) const TSTP: i32 = 20;
const USR1: i32 = 10;
const USR2: i32 = 12;

/// Receives signals instead of dying of them.
pub(crate) struct Signals(Vec<(i32, unix::Signal)>);

impl Signals {
    /// Those that were ignored when we were started stay so, as for `nohup`.
    pub(crate) fn new() -> Outcome<Self> {
        let ignored = ignored();
        let wanted = [HUP, INT, QUIT, USR1, USR2, TERM, CONT, TSTP];
        let wanted = wanted.into_iter().filter(|number| ignored >> (number - 1) & 1 == 0);
        let receive = |number| Ok((number, unix::signal(SignalKind::from_raw(number))?));
        let signals: std::io::Result<_> = wanted.map(receive).collect();
        signals.map(Self).map_err(|error| Failure::system("cannot receive signals", &error))
    }

    pub(super) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let mut came = self.0.iter_mut().filter_map(|(number, signal)| {
                matches!(signal.poll_recv(context), Poll::Ready(Some(()))).then_some(*number)
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The next one of those that end us while there is no command yet.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            match self.next().await {
                number @ (HUP | INT | QUIT | TERM) => return number,
                TSTP if can_go_on() => stop_ourselves(),
                _ => {}
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
        number = signals.ending() => Err(Failure::silent(exit::by_signal(number))),
        outcome = work => outcome,
    };
    let _ = coordinator.stop().await;
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

/// What Ctrl-Z does with who does not catch it.
pub(super) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// The mask of signals that are ignored.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
