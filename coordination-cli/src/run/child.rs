//! A command that runs under something: started, watched, and ended in time.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use coordination::Claim;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Child as Process;
use tokio::signal::unix;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

pub(crate) use self::prepared::Prepared;
pub(super) use self::prepared::{
    SHELL, by_shell, check_grace, find, is_for_shell, is_loss_before, not_begun, tell,
};
use self::terminal::Terminal;
use super::alive::{self, Process as Living};
use super::family::Family;
use super::signals::{self, Signals};
use super::wanted::Hold;
use super::watch::{Watch, Word};
use crate::args::{Child as Options, OnLost};
use crate::exit::{self, Failure, Outcome, say};

mod ending;
mod prepared;
mod terminal;

/// How long before its deadline the lock counts as lost for the command: it takes that long to end it.
const KILL_LEAD: Duration = Duration::from_millis(20);
/// From SIGTERM to SIGKILL when the store has given the lock away: another command starts after `--settle`.
const REVOKED_GRACE: Duration = Duration::from_millis(50);
/// How often the watch is told the deadline, in parts of the lease.
const UPDATES: u32 = 8;
/// When it is first looked who was orphaned, and how often at least.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const RAREST_LOOK: Duration = Duration::from_secs(10);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The command's own code; after an end by a signal, something else than 0.
    pub(super) code: u8,
    /// The signal that it died of.
    pub(super) signal: Option<i32>,
    /// It was stopped, as what it ran under was lost, or about to be.
    pub(super) was_stopped: bool,
}

impl Ended {
    fn new(status: ExitStatus, was_stopped: bool) -> Self {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Self { code: code.unwrap_or(exit::SYSTEM), signal: status.signal(), was_stopped }
    }

    /// As we end: as the command has.
    pub(super) fn outcome(&self) -> Outcome<u8> {
        match self.signal {
            Some(number) => Err(Failure::by_signal(number)),
            None => Ok(self.code),
        }
    }
}

/// A command that runs.
struct Running<'a> {
    process: Process,
    pid: Pid,
    watch: Watch,
    family: Family,
    /// What somebody types there reaches the command; `None`: nobody is at any, or the command is of our own group.
    terminal: Option<Terminal>,
    /// Tells that children of ours have ended, or stand still: the two above, and orphans.
    deaths: unix::Signal,
    options: &'a Options,
    quiet: bool,
    /// What it runs under; `None`: nothing that could be lost.
    hold: Option<Hold>,
    /// That it may run now; it is spent by success only.
    claim: Option<Claim>,
    /// What lets go of both before the command has ended.
    releasing: Option<JoinHandle<()>>,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    /// When SIGKILL follows; `None`: the command need not end.
    kill_at: Option<Instant>,
    /// When it is looked again who has come to us, and how long after the look before.
    next_look: Instant,
    looked_after: Duration,
    was_stopped: bool,
    /// The watch has seen that the command ended in time, and nothing of it was left, whenever we came to see it: we may have stood
    /// still.
    had_ended_in_time: bool,
    /// A signal that ends others was passed on.
    was_told_to_end: bool,
    /// The loss was told, and not only feared.
    is_lost: bool,
    /// Something of the command lives that we have given up to wait for.
    goes_on: bool,
}

fn is_loss(error: &coordination::Error) -> bool {
    matches!(error.kind(), coordination::ErrorKind::Lost | coordination::ErrorKind::Closed)
}

impl Running<'_> {
    /// Passes signals on, and ends the command in time, until it has ended.
    async fn supervise(
        &mut self,
        signals: &mut Signals,
        mut release_at: Option<Instant>,
    ) -> Outcome<Ended> {
        let is_ignored = self.options.on_lost == OnLost::Ignore;
        loop {
            let bound = self.hold.as_ref().filter(|_| !is_ignored);
            self.watch.update(bound);
            let next_look = bound.and_then(Hold::remaining).map(|left| {
                let due = left.saturating_sub(self.lead());
                Instant::now() + due.min(left / UPDATES).max(Duration::from_millis(1))
            });
            tokio::select! {
                biased;
                status = self.process.wait() => {
                    self.note_kill();
                    self.take_terminal_back(status.as_ref().ok().and_then(ExitStatusExt::signal));
                    // Whatever is known of the command: what it has started ends before the lock is free.
                    let was_alone = self.end_family(signals, &status).await;
                    // Also where the lock still counts as held, as it may be over in a moment, when our own timers have caught up. But
                    // what the command has left may have gone on until we came to see it.
                    self.had_ended_in_time =
                        was_alone && self.hold.is_some() && self.watch.has_seen_end();
                    self.watch.look_at(Word::Goodbye);
                    let status = status.map_err(|error| Failure::system("cannot wait for the command", &error))?;
                    return Ok(Ended::new(status, self.was_stopped));
                }
                number = signals.next() => self.pass_on(number),
                reason = lost(bound), if !self.is_lost => {
                    self.is_lost = true;
                    let grace = self.grace.min(REVOKED_GRACE);
                    self.stop(format_args!("lost {}: {reason}", self.shown()), grace);
                }
                () = at(self.kill_at) => self.kill(),
                never = self.watch.keep() => match never {},
                _ = self.deaths.recv() => {
                    self.look_at_stop();
                    self.look();
                }
                () = sleep_until(self.next_look) => self.look_again(),
                // A command that is being stopped has not succeeded, and runs yet.
                () = at(release_at), if !self.was_stopped => {
                    release_at = None;
                    let (hold, claim) = (self.hold.take(), self.claim.take());
                    self.releasing = Some(tokio::spawn(async move {
                        // What is released is done: nobody can tell any more how it ended.
                        if let Some(claim) = claim {
                            let _ = claim.done().await;
                        }
                        if let Some(hold) = hold {
                            let _ = hold.release().await;
                        }
                    }));
                }
                () = at(next_look), if !self.was_stopped => self.look_at_deadline(),
            }
        }
    }

    /// If the watch was before us, the command has not ended by itself: it was stopped, though we may hold the lock for a moment yet.
    fn note_kill(&mut self) {
        if self.was_stopped || !self.watch.has_killed() {
            return;
        }
        self.was_stopped = true;
        if !self.quiet {
            say(format_args!("about to lose {}; the watch has stopped the command", self.shown()));
        }
    }

    /// Whether the command has ended, also where the runtime was not told yet: when we go on after we stood still, our own timers
    /// come first. Then nothing is to be stopped.
    fn has_ended(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }

    /// The period is spent, or another may run it.
    async fn settle_claim(&mut self, is_done: bool) -> Outcome {
        let Some(claim) = self.claim.take() else { return Ok(()) };
        if !is_done {
            // If the store does not hear of it, the next one finds that nobody is at it any more.
            let _ = claim.give_back().await;
            return Ok(());
        }
        claim.done().await.map(drop).map_err(|error| {
            let what = "the command has succeeded, but may run again, as the store was not told";
            Failure::new(exit::UNAVAILABLE, format!("{what}: {error}"))
        })
    }

    /// How long before the deadline the command's end begins.
    fn lead(&self) -> Duration {
        match self.options.on_lost {
            OnLost::Term => self.grace + KILL_LEAD,
            OnLost::Kill | OnLost::Ignore => KILL_LEAD,
        }
    }

    /// Begins to end the command when there is just enough time left for that.
    fn look_at_deadline(&mut self) {
        let left = self.hold.as_ref().and_then(Hold::remaining);
        if let Some(left) = left.filter(|left| *left <= self.lead()) {
            let grace = left.saturating_sub(KILL_LEAD);
            self.stop(
                format_args!("about to lose {}: the store does not answer", self.shown()),
                grace,
            );
        }
    }

    fn shown(&self) -> String {
        self.hold.as_ref().map(Hold::shown).unwrap_or_default()
    }

    /// Begins to end the command, or ends it sooner, unless it has ended by itself.
    fn stop(&mut self, why: std::fmt::Arguments<'_>, grace: Duration) {
        if self.has_ended() {
            return;
        }
        self.was_stopped = true;
        match self.options.on_lost {
            OnLost::Kill => self.kill(),
            OnLost::Term | OnLost::Ignore => {
                self.signal_all(Signal::TERM);
                // It may have been stopped: a signal is of no use to who does not run.
                self.signal_all(Signal::CONT);
                // Never later than was said before: that was in time for the deadline.
                let kill_at = Instant::now() + grace;
                self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
            }
        }
        if !self.quiet {
            say(format_args!("{why}; stopping the command"));
        }
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal_all(Signal::KILL);
    }

    /// Also what has left the process group.
    fn signal_all(&mut self, signal: Signal) {
        // Those first that one call reaches.
        self.signal(signal);
        let is_beyond = |process: &&Living| {
            self.options.foreground || process.place.group != self.pid.as_raw_nonzero().get()
        };
        let family = self.family.living(self.watch.pid());
        family.iter().filter(is_beyond).for_each(|process| process.signal(signal));
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by now; its number is not given to another until we have waited for it.
        let _ = match self.options.foreground {
            true => kill_process(self.pid, signal),
            false => kill_process_group(self.pid, signal),
        };
    }

    /// What the command has left to us, and has ended, would stay until we end.
    fn wait_for_orphans(&self) {
        let own = [Some(self.pid), self.watch.pid()];
        alive::wait_for_children(|child| own.contains(&Some(child)));
    }

    /// Notes who has come to us, for the time after our death: then nothing might tell it from a stranger.
    fn look(&mut self) {
        self.wait_for_orphans();
        let orphans = self.family.orphans(self.watch.pid());
        self.watch.know(&orphans);
    }

    /// The same where no death has told of it: an orphan's parent may have been another's child. More and more rarely.
    fn look_again(&mut self) {
        self.look();
        self.looked_after = (2 * self.looked_after).min(RAREST_LOOK);
        self.next_look = Instant::now() + self.looked_after;
    }

    fn pass_on(&mut self, number: i32) {
        if number == signals::TSTP && !signals::can_go_on() {
            return;
        }
        let ends = matches!(number, signals::HUP | signals::INT | signals::QUIT | signals::TERM);
        if ends {
            // Before parents die of it.
            self.look();
        }
        if let Some(terminal) = self.terminal.as_ref().filter(|_| number == signals::CONT) {
            terminal.lend_again();
        }
        // In the terminal's foreground those of its keys, and of its size, have reached the command by themselves.
        if !(self.options.foreground && signals::is_by_terminal(number)) {
            match Signal::from_named_raw(number) {
                Some(signal) => self.signal(signal),
                None => signals::send_unnamed(number, self.pid, self.options.foreground),
            }
            // What ends others is to end it too if it stands still: it may have read a terminal that is not its own.
            if ends {
                self.signal(Signal::CONT);
                self.was_told_to_end = true;
            }
        }
        // While we stand still, so does the command; and the watch ends it if that takes too long.
        if number == signals::TSTP {
            signals::stop_ourselves();
        }
    }
}

pub(super) async fn lost(hold: Option<&Hold>) -> coordination::LossReason {
    match hold {
        Some(hold) => hold.lost().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
