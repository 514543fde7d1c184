//! The process that ends a command if we cannot: when we are killed, and when we stand still beyond the deadline.
//!
//! It is ourselves, started once more under a name that no user types ([`WATCH`]), in a process group of its own.
//! It reads [`Word`]s from its stdin, a socket: whom to watch, and until when. At a deadline that nobody has moved on, or
//! when the socket ends without a goodbye, it kills.
//!
//! On one host a lock ends with the last process that has its session's file open. So the watch is given that file, and
//! has it until what it kills is dead.
//!
//! The usual means, a signal from the kernel at the parent's death, is unsafe code here or a process more on the way of
//! every start, and reaches neither what the command has started nor a command whose wrapper stands still.
//!
//! A wrapper may be killed when the command is there, and the watch not told of it. So each command has the
//! mark of its run in its environment ([`family`]), and a watch that was told of none looks for it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep_until;

use self::newest::Newest;
use self::task::{known, since_boot, still, wait};
pub(super) use self::words::Word;
use self::words::send;
pub(crate) use super::alive::WATCH;
use super::alive::{self, Process};
use super::family::{self, Family};
use super::wanted::Hold;

mod newest;
mod task;
mod words;

/// How long before the deadline the watch acts, if we could not.
const LEAD: Duration = Duration::from_millis(10);
/// How long after a loss that the store told of the watch acts, if we could not: a little longer than we leave to the command.
const LOST: Duration = Duration::from_millis(80);
/// How long a command is looked for that nobody has told of: it was being started when we were killed.
const HUNT: Duration = Duration::from_secs(1);
/// How often all processes are looked at after that, while what cannot be killed goes on.
const SEARCH: Duration = Duration::from_secs(5);
/// How often it is looked whether what was killed is dead, at first; later in parts of the time that it has taken.
const DEATH_STEP: Duration = Duration::from_millis(1);
const DEATH_STEPS: u32 = 20;
const SOON: Duration = Duration::from_millis(50);
const LONGEST_DEATH_STEP: Duration = Duration::from_millis(500);
/// A watch that was killed is started anew, at most this often.
const RESTART: Duration = Duration::from_secs(1);

/// Our side of it. It is told goodbye when this is dropped.
pub(super) struct Watch {
    process: Child,
    started: Instant,
    socket: OwnedFd,
    newest: Newest,
    mark: String,
    kept: Option<OwnedFd>,
    watched: Option<Word>,
    deadline: Option<Word>,
    /// Who is to be known one by one, and whether the watch was told of him.
    left: Vec<(Process, bool)>,
}

impl Watch {
    /// Of the run that has this mark.
    pub(super) fn start(mark: String) -> io::Result<Self> {
        let newest = Newest::new();
        let (process, socket) = spawn(&mark, &newest)?;
        let started = Instant::now();
        let (kept, watched, deadline, left) = (None, None, None, Vec::new());
        Ok(Self { process, started, socket, newest, mark, kept, watched, deadline, left })
    }

    /// `None`: there is none just now.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
    }

    /// Has this file open until what is watched is dead.
    pub(super) fn keep_open(&mut self, file: OwnedFd) {
        self.kept = Some(file);
        self.tell(Word::Keep);
    }

    /// Says whom to watch.
    pub(super) fn look_at(&mut self, whom: Word) {
        self.watched = Some(whom);
        self.tell(whom);
    }

    /// Says until when the command may run, if that has changed by much.
    pub(super) fn update(&mut self, hold: Option<&Hold>) {
        let in_time = |left: Duration| {
            let moment = since_boot() + left;
            // In hundredths of a second, so that the same deadline is not told again and again.
            u64::try_from(moment.as_millis() / 10 * 10_000_000).unwrap_or(u64::MAX)
        };
        let deadline = hold.and_then(Hold::remaining).map(|left| match (left, self.deadline) {
            // What is lost has no time left. If the store said so, the command has a moment to end, which we give it.
            (Duration::ZERO, Some(Word::Deadline(known))) => known.min(in_time(LOST)),
            (Duration::ZERO, Some(Word::NoDeadline)) => in_time(LOST),
            _ => in_time(left.saturating_sub(LEAD)),
        });
        let word = deadline.map_or(Word::NoDeadline, Word::Deadline);
        if self.deadline != Some(word) {
            self.deadline = Some(word);
            self.newest.set(word);
            self.tell(word);
        }
    }

    /// Whether the watch has seen the command end before its deadline.
    pub(super) fn has_seen_end(&self) -> bool {
        self.newest.has_end()
    }

    /// Whether the watch has ended the command at its deadline, before we could.
    pub(super) fn has_killed(&self) -> bool {
        self.newest.has_kill()
    }

    /// Names those that descend from the command and have left it: once we are dead, nothing might tell them from strangers.
    pub(super) fn know(&mut self, left: &[Process]) {
        self.left.retain(|(known, _)| left.iter().any(|process| process.is_same(known)));
        for process in left {
            if !self.left.iter().any(|(known, _)| known.is_same(process)) {
                self.left.push((process.clone(), false));
            }
        }
        self.tell_of_left();
    }

    fn tell_of_left(&mut self) {
        for (process, is_told) in self.left.iter_mut().filter(|(_, is_told)| !is_told) {
            *is_told = send(&self.socket, Word::Left(process.pid, process.started), None).is_ok();
        }
    }

    /// Starts another one whenever it was killed. Never ends, and can be dropped at any time.
    pub(super) async fn keep(&mut self) -> std::convert::Infallible {
        loop {
            // An error would be that there is no such child, which is the same to us.
            let _ = self.process.wait().await;
            sleep_until((self.started + RESTART).into()).await;
            self.started = Instant::now();
            if let Ok((process, socket)) = spawn(&self.mark, &self.newest) {
                (self.process, self.socket) = (process, socket);
                let keep = self.kept.as_ref().map(|_| Word::Keep);
                for word in [keep, self.watched, self.deadline].into_iter().flatten() {
                    self.tell(word);
                }
                self.left.iter_mut().for_each(|(_, is_told)| *is_told = false);
                self.tell_of_left();
            }
        }
    }

    fn tell(&mut self, word: Word) {
        if word == Word::Goodbye {
            self.newest.set(word);
        }
        let file = self.kept.as_ref().filter(|_| word == Word::Keep).map(AsFd::as_fd);
        // Should it have been killed, or stand still with the socket full, we are still there, and tell it again.
        if send(&self.socket, word, file).is_err() {
            self.deadline = None;
        }
    }
}

/// What tells this run from all others.
pub(super) fn new_mark() -> String {
    let now = clock_gettime(ClockId::Boottime);
    // No other process of this host has both, also after its numbers have come round.
    format!("{}-{}{:09}", std::process::id(), now.tv_sec, now.tv_nsec)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tell(Word::Goodbye);
    }
}

fn spawn(mark: &str, newest: &Newest) -> io::Result<(Child, OwnedFd)> {
    let (words, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("coordination").arg(WATCH).arg(mark).stdin(words);
    // It must not hold open what our caller reads, nor get what its terminal sends.
    command.stdout(newest.shared()).stderr(Stdio::null()).process_group(0).env_clear();
    // Not killed with us: it ends after us.
    Command::from(command).spawn().map(|process| (process, socket))
}

/// Ends what stdin tells of at its deadline, or at the end of stdin without a goodbye.
pub(crate) fn watch(mark: &OsStr) -> ExitCode {
    // A process that is stopped when its parent dies is sent SIGHUP and let go on, by the kernel; and a service that is ended
    // is sent SIGTERM, all its processes at once. What is handled once stays so, and nobody looks at what comes. Without that we
    // would still watch.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let _survived = runtime.as_ref().map(|runtime| {
        let _within = runtime.enter();
        [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()].map(signal)
    });
    let mut family = Family::of_parent(mark);
    // Open until we end: by then what is to end is dead.
    let mut kept = Vec::new();
    let mut task = wait(io::stdin(), &Newest::of_parent(), &mut kept).unwrap_or_default();
    let mut left = std::mem::take(&mut task.left);
    if !task.is_late {
        // It may still be our parent, but takes no orphans any more.
        family.forget_wrapper();
    }
    let mut at_least = Duration::ZERO;
    match task.whom {
        Some(Word::Goodbye) => return ExitCode::SUCCESS,
        Some(Word::Group(group, began)) => {
            family.group = Some(group).filter(|group| alive::is_still(*group, known(began)));
            // While the wrapper lives, what this leaves without a parent is found among the wrapper's children; so the most comes first.
            if let Some(group) = family.group.filter(|_| family.has_wrapper()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        Some(Word::Single(process, began)) => left.extend(still(process, began)),
        _ => at_least = HUNT,
    }
    end(&mut family, left, at_least, task.grace());
    ExitCode::SUCCESS
}

/// Kills until nothing of it lives, and for so long at least: it may be about to be born. As with flock(1), what cannot be killed
/// keeps its lock.
///
/// All are stopped before one is killed: whoever stands still starts no others, and with a parent's death it would not be known
/// any more whose children they are.
///
/// Before that they are asked to end, and have so long for it.
///
/// Those that are known already are looked for no more.
fn end(family: &mut Family, mut known: Vec<Process>, at_least: Duration, grace: Duration) {
    let start = Instant::now();
    if !grace.is_zero() {
        stop(family, &mut known);
        send_all(&known, Signal::TERM);
        send_all(&known, Signal::CONT);
        wait_for(&mut known, grace);
    }
    let mut searched: Option<Instant> = None;
    loop {
        // What is about to be born comes soon; later only what could not be killed starts others.
        let is_old = |searched: Instant| searched.elapsed() >= SEARCH;
        // What is left may go on for days, and another group may have the number by then.
        family.forget_empty_group();
        if start.elapsed() < HUNT || searched.is_none_or(is_old) {
            stop(family, &mut known);
            searched = Some(Instant::now());
        } else {
            stop_children(&mut known);
        }
        send_all(&known, Signal::KILL);
        // Whoever stands still or is dead starts no others: no need to look at all processes again soon.
        wait_for(&mut known, SOON);
        if known.is_empty() && start.elapsed() >= at_least {
            return;
        }
        std::thread::sleep((start.elapsed() / DEATH_STEPS).clamp(DEATH_STEP, LONGEST_DEATH_STEP));
    }
}

/// Stops the children of those that are known, and theirs: no look at all processes.
fn stop_children(known: &mut Vec<Process>) {
    let mut begin = 0;
    while begin < known.len() {
        let found = family::children(&known[begin..], known);
        begin = known.len();
        send_all(&found, Signal::STOP);
        known.extend(found);
    }
}

/// Stops all of them, until there are no more.
fn stop(family: &Family, known: &mut Vec<Process>) {
    send_all(known, Signal::STOP);
    // Who is none of them does not become one, but for the command itself, which may have no mark yet.
    let mut seen: HashSet<Pid> = known.iter().map(|process| process.pid).collect();
    loop {
        let found = family.newcomers(&mut seen, known);
        if found.is_empty() {
            return;
        }
        send_all(&found, Signal::STOP);
        known.extend(found);
    }
}

fn send_all(processes: &[Process], signal: Signal) {
    processes.iter().for_each(|process| process.signal(signal));
}

/// Leaves those that have not ended within this time.
fn wait_for(processes: &mut Vec<Process>, limit: Duration) {
    let start = Instant::now();
    while !processes.is_empty() && start.elapsed() < limit {
        std::thread::sleep(DEATH_STEP);
        processes.retain(Process::is_alive);
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::{MARK, tests::orphaned};
    use super::*;

    #[test]
    fn who_was_not_told_of_is_found() {
        let start = |mark| {
            let mut command = std::process::Command::new("sleep");
            let child = command.arg("600").env(MARK, mark).spawn().expect("sleep");
            // It becomes `sleep`, with its own environment. On a busy machine that may take longer than is looked.
            let process = Process::of(Pid::from_child(&child)).expect("it lives");
            let begun = Instant::now();
            while process.environment().is_empty() && begun.elapsed() < 30 * HUNT {}
            child
        };
        // No other check has processes of this mark: whoever has it is killed.
        let (mut ours, mut another) = (start("6-66"), start("6-666"));
        end(&mut orphaned("6-66"), Vec::new(), Duration::ZERO, Duration::from_millis(1));
        let lives = another.try_wait().expect("ours").is_none();
        another.kill().expect("ours");
        assert!(lives, "a mark that begins alike");
        assert!(ours.wait().expect("ours").code().is_none(), "killed");
    }

    /// Its number may be another group's later.
    #[test]
    fn a_group_in_which_nobody_is_any_more_is_forgotten() {
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("600").process_group(0).spawn().expect("sleep");
        let mut family = orphaned("9-99");
        family.group = Some(Pid::from_child(&child));
        family.forget_empty_group();
        assert!(family.group.is_some(), "it lives");
        // It is forgotten before a look, and on a busy machine the first look may take all of that time.
        let begun = Instant::now();
        while family.group.is_some() && begun.elapsed() < 30 * HUNT {
            end(&mut family, Vec::new(), HUNT, Duration::ZERO);
        }
        assert_eq!(family.group, None);
        // It may have been waited for.
        let _ = child.wait();
    }
}
