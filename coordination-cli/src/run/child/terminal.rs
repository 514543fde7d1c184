//! The terminal: the command's process group has it while we are its foreground, as a shell's job has.
//!
//! A process of another group that reads the terminal stands still (SIGTTIN), and so does one that changes its settings, as for
//! a password (SIGTTOU). What somebody types to end or to stop a program goes to the foreground as well. So what a shell does for its
//! jobs is done here for the command: its group gets the terminal, gives it back in the end, and when it is stopped, we and
//! whoever else is of our group stop with it, so that the shell which has started us can let all of it go on.
//!
//! Taking the terminal back would stop us, as the foreground is the command's by then: SIGTTOU is blocked in us (`src/begin.c`).

use std::io::{stdin, stdout};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use tokio::time::Instant;

use super::Running;
use crate::exit::say;
use crate::run::alive::{self, Place};
use crate::run::signals::{self, INT, QUIT, TTIN, TTOU};

/// The terminal that we run at.
pub(super) struct Terminal {
    file: OwnedFd,
    /// Our process group, and the command's.
    ours: Pid,
    group: Pid,
    /// Started by a shell that goes on without us, and uses the terminal itself.
    is_aside: bool,
    /// The command wants it: it stands in its foreground, or has asked for it.
    is_wanted: bool,
}

/// What follows from it that the command stands still.
enum Then {
    /// It goes on.
    GoOn,
    /// All of us stand still.
    Stop(Signal),
    /// It ends, as it can never go on.
    End,
    /// Somebody has stopped it, and can let it go on.
    Nothing,
}

impl Terminal {
    /// Hands the terminal over to this command, at once where the command has nothing else to read or write.
    ///
    /// `None`: there is no terminal, or we could not take it back.
    pub(super) fn of(command: Pid, is_fed: bool) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open("/dev/tty", flags, Mode::empty()).ok()?;
        let ours = Place::of_us().and_then(|us| Pid::from_raw(us.group))?;
        if !signals::is_blocked(TTOU) {
            return None;
        }
        // What a shell without job control does to what it starts with `&`: it goes on itself, in the same group.
        let is_aside = signals::is_ignored(INT) && signals::is_ignored(QUIT) && !isatty(stdin());
        // In a pipeline another program may be the one that reads keys.
        let is_wanted = !is_fed && isatty(stdin()) && isatty(stdout());
        let terminal = Self { file, ours, group: command, is_aside, is_wanted };
        if is_wanted {
            terminal.lend();
        }
        Some(terminal)
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.file).ok()
    }

    /// Gives the terminal to the command, if we have it; answers whether the command has it.
    fn lend(&self) -> bool {
        let is_ours = !self.is_aside && self.foreground() == Some(self.ours);
        is_ours && tcsetpgrp(&self.file, self.group).is_ok()
    }

    /// The same before the command goes on that was stopped with us.
    pub(super) fn lend_again(&self) {
        if self.is_wanted {
            self.lend();
        }
    }

    /// Takes it from the command, or from a job of a shell which the command was; answers whether the command had it.
    fn take_back(&self) -> bool {
        let is_of_command = self
            .foreground()
            .is_some_and(|group| group == self.group || (group != self.ours && is_below_us(group)));
        is_of_command && tcsetpgrp(&self.file, self.ours).is_ok()
    }

    /// The signal by which all of our group stand still.
    ///
    /// The shell lets a job go on when those stand still that it has started itself. If that is a script of our group, it stands
    /// still as soon as it is signalled, but we receive SIGTSTP and stop when we come to it: after `fg`, and for good, if that is
    /// late. SIGSTOP stops us at once, or not at all if SIGCONT came first.
    fn stopping(&self) -> Signal {
        let starter = Place::of_us().and_then(Place::of_parent);
        match starter.and_then(|starter| Pid::from_raw(starter.group)) == Some(self.ours) {
            true => Signal::STOP,
            false => Signal::TSTP,
        }
    }

    /// The command was stopped by this signal.
    fn after_stop(&mut self, signal: i32) -> Then {
        let is_lent = self.foreground() == Some(self.group);
        match signal {
            TTIN | TTOU => {
                self.is_wanted = true;
                // It may have asked before it was given it.
                if is_lent || self.lend() {
                    Then::GoOn
                } else if !self.is_aside && signals::can_go_on() {
                    // As a job in the background. SIGTTOU would not stop us.
                    Then::Stop(Signal::TTIN)
                } else {
                    Then::End
                }
            }
            _ if !is_lent => Then::Nothing,
            _ if signals::can_go_on() => {
                self.take_back();
                Then::Stop(self.stopping())
            }
            _ => Then::GoOn,
        }
    }
}

impl Running<'_> {
    /// The command may have been stopped by the terminal, or by somebody there.
    pub(super) fn look_at_stop(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        let flags = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let stopped = waitid(WaitId::Pid(self.pid), flags).ok().flatten();
        let Some(signal) = stopped.and_then(|status| status.stopping_signal()) else { return };
        let ours = terminal.ours;
        match terminal.after_stop(signal) {
            Then::GoOn => self.signal(Signal::CONT),
            // Also who has started us, if that is of our group: a script.
            Then::Stop(signal) => {
                let _ = kill_process_group(ours, signal);
            }
            Then::End if self.kill_at.is_none() => {
                say(format_args!(
                    "the command waits for the terminal, which it cannot have; ending it"
                ));
                // What the kernel does to those who stand still and whom nobody can let go on.
                self.signal(Signal::HUP);
                self.signal(Signal::CONT);
                self.kill_at = Some(Instant::now() + self.grace);
            }
            Then::End | Then::Nothing => {}
        }
    }

    /// Takes the terminal back when the command has ended, by this signal if by one.
    ///
    /// What somebody has typed has reached the command alone. A shell's script ends if it gets the signal as well.
    pub(super) fn take_terminal_back(&mut self, signal: Option<i32>) {
        let Some(terminal) = &self.terminal else { return };
        let had_it = terminal.take_back();
        let typed = signal.filter(|number| matches!(*number, INT | QUIT));
        if let Some(signal) = typed.and_then(Signal::from_named_raw)
            && had_it
            && !self.was_told_to_end
        {
            self.was_told_to_end = true;
            let _ = kill_process_group(terminal.ours, signal);
        }
    }
}

/// Whether this group is of a process that we have started, or nobody is in it any more.
fn is_below_us(group: Pid) -> bool {
    let Some(leader) = Place::of_process(group) else { return !alive::is_group_there(group) };
    let ancestors = std::iter::successors(Some(leader), |place| place.of_parent());
    ancestors.take(DEEPEST).any(|place| place.parent == getpid().as_raw_nonzero().get())
}

/// So many generations are looked at: numbers may come round meanwhile.
const DEEPEST: usize = 1000;
