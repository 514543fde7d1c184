//! The command has ended; what it has started ends too, before the lock is free.

use std::io;
use std::process::{ExitStatus, exit};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Ended, Running};
use crate::args::OnLost;
use crate::exit::{SYSTEM, last_code, say};
use crate::run::alive::Process;
use crate::run::family::named;
use crate::run::signals::Signals;
use crate::run::wanted::Hold;
use crate::run::watch::Word;
use crate::stderr;

/// What is about to end by itself has this long: the reader at a pipe's end, what a script left to the last.
const LINGER: Duration = Duration::from_millis(100);
/// How long a process may take to be gone that was sent SIGKILL: it may be within the kernel.
const KILLED: Duration = Duration::from_secs(1);
/// How often it is looked whether all have ended, at first; later less often.
const POLL: Duration = Duration::from_millis(2);
const LONGEST_POLL: Duration = Duration::from_millis(20);
/// The same for those that cannot be ended.
const LOOK: Duration = Duration::from_millis(200);

impl Running<'_> {
    /// Waits for what the command has started, ends it, and waits for what does not end. Answers whether there was nothing of it.
    pub(super) async fn end_family(
        &mut self,
        signals: &mut Signals,
        status: &io::Result<ExitStatus>,
    ) -> bool {
        let linger = if self.is_over() || status.is_err() { Duration::ZERO } else { LINGER };
        let (start, mut told, mut poll) = (Instant::now(), Vec::<Process>::new(), POLL);
        let mut was_alone = true;
        loop {
            let left = self.left(status.is_ok());
            if left.is_empty() {
                break;
            }
            was_alone = false;
            let spent = start.elapsed().saturating_sub(linger);
            if spent >= self.grace + KILLED {
                self.keep(&left, signals, status).await;
                return false;
            }
            let is_held = self.hold.as_ref().is_none_or(|hold| hold.is_held());
            if self.was_stopped || !is_held || spent >= self.grace {
                left.iter().for_each(|process| process.signal(Signal::KILL));
            }
            if start.elapsed() >= linger {
                self.watch.know(&left);
                let is_new = |process: &Process| !told.iter().any(|told| told.is_same(process));
                let new: Vec<_> = left.into_iter().filter(is_new).collect();
                for process in &new {
                    process.signal(Signal::TERM);
                    process.signal(Signal::CONT);
                }
                told.extend(new);
            }
            self.move_deadline_on();
            tokio::select! {
                biased;
                never = self.watch.keep() => match never {},
                () = sleep(poll) => {}
            }
            poll = (2 * poll).min(LONGEST_POLL);
        }
        if !told.is_empty() && !self.is_over() && !self.quiet {
            say(format_args!("ended what the command had left running: {}", named(&told)));
        }
        was_alone
    }

    /// Somebody has ended the command; that the rest ends too is no news.
    fn is_over(&self) -> bool {
        self.was_stopped || self.was_told_to_end
    }

    /// What the command has started and lives.
    fn left(&mut self, was_waited_for: bool) -> Vec<Process> {
        self.wait_for_orphans();
        let has_number = self.family.command.is_some() || self.family.group.is_some();
        if was_waited_for && has_number {
            // Another process may have the command's number by now, and that of its group once the group is empty.
            self.family.command = None;
            self.family.forget_empty_group();
            if self.family.group.is_none() {
                self.watch.look_at(Word::Numberless);
            }
        }
        match self.family.is_gone(self.watch.pid()) {
            true => Vec::new(),
            false => self.family.living(self.watch.pid()),
        }
    }

    fn move_deadline_on(&mut self) {
        let is_ignored = self.options.on_lost == OnLost::Ignore;
        self.watch.update(self.hold.as_ref().filter(|_| !is_ignored));
    }

    /// What does not end keeps the lock, for as long as we have it and nobody tells us to end.
    async fn keep(
        &mut self,
        left: &[Process],
        signals: &mut Signals,
        status: &io::Result<ExitStatus>,
    ) {
        let is_held = self.hold.as_ref().is_some_and(Hold::is_held);
        let then = match self.is_kept() {
            true if is_held => "; the lock is kept until they have ended",
            true => "; whoever follows waits for their end, five seconds at most",
            false => "",
        };
        say(format_args!(
            "processes of the command go on, another user's, or SIGKILL does not end them: {}{then}",
            named(left)
        ));
        // The watch keeps the lock for them when we are told to end, or are killed.
        self.watch.know(left);
        self.goes_on = true;
        while self.is_kept() {
            tokio::select! {
                biased;
                _ = signals.ending() => self.leave(status),
                never = self.watch.keep() => match never {},
                () = sleep(LOOK) => {}
            }
            let left = self.left(status.is_ok());
            if left.is_empty() {
                self.goes_on = false;
                break;
            }
            // Some may have come since; and what was within the kernel is not for ever.
            left.iter().for_each(|process| process.signal(Signal::KILL));
            self.watch.know(&left);
            self.move_deadline_on();
        }
    }

    /// Whether somebody waits, or would wait, for us to let go.
    fn is_kept(&self) -> bool {
        self.hold.as_ref().is_some_and(Hold::is_kept)
    }

    /// Ends without a word to the store or a goodbye to the watch: what goes on keeps the lock, on one host until it has ended, as
    /// the watch knows it and has the session's file, and elsewhere until the lease ends.
    fn leave(&self, status: &io::Result<ExitStatus>) -> ! {
        stderr::finish();
        let ended = |status: &ExitStatus| Ended::new(*status, self.was_stopped).outcome();
        exit(i32::from(last_code(status.as_ref().map_or(Ok(SYSTEM), ended))))
    }
}
