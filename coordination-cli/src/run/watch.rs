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

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep_until;

pub(super) use self::words::Word;
use self::words::{receive, send};
use super::alive::Process;
pub(crate) use super::alive::WATCH;
use super::family::{self, Family};
use super::wanted::Hold;

mod words;

/// How long before the deadline the watch acts, if we could not.
const LEAD: Duration = Duration::from_millis(10);
/// How long a command is looked for that nobody has told of: it was being started when we were killed.
const HUNT: Duration = Duration::from_secs(1);
/// How often all processes are looked at after that, while what cannot be killed goes on.
const SEARCH: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL when the wrapper has died: where the lock is held until we end, and elsewhere.
const GRACE: Duration = Duration::from_secs(1);
const SHORT_GRACE: Duration = Duration::from_millis(50);
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
        let (process, socket) = spawn(&mark)?;
        let started = Instant::now();
        let (kept, watched, deadline, left) = (None, None, None, Vec::new());
        Ok(Self { process, started, socket, mark, kept, watched, deadline, left })
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
        let deadline = hold.and_then(Hold::remaining).map(|left| {
            let moment = since_boot() + left.saturating_sub(LEAD);
            // In hundredths of a second, so that the same deadline is not told again and again.
            u64::try_from(moment.as_millis() / 10 * 10_000_000).unwrap_or(u64::MAX)
        });
        let word = deadline.map_or(Word::NoDeadline, Word::Deadline);
        if self.deadline != Some(word) {
            self.deadline = Some(word);
            self.tell(word);
        }
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
            *is_told = send(&self.socket, Word::Left(process.pid), None).is_ok();
        }
    }

    /// Starts another one whenever it was killed. Never ends, and can be dropped at any time.
    pub(super) async fn keep(&mut self) -> std::convert::Infallible {
        loop {
            // An error would be that there is no such child, which is the same to us.
            let _ = self.process.wait().await;
            sleep_until((self.started + RESTART).into()).await;
            self.started = Instant::now();
            if let Ok((process, socket)) = spawn(&self.mark) {
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
        let file = self.kept.as_ref().filter(|_| word == Word::Keep).map(AsFd::as_fd);
        // Should it have been killed, or stand still with the socket full, we are still there, and tell it again.
        if send(&self.socket, word, file).is_err() {
            self.deadline = None;
        }
    }
}

fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

fn spawn(mark: &str) -> io::Result<(Child, OwnedFd)> {
    let (words, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("coordination").arg(WATCH).arg(mark).stdin(words);
    // It must not hold open what our caller reads, nor get what its terminal sends.
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).env_clear();
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
    let mut task = wait(io::stdin(), &mut kept).unwrap_or_default();
    let left = std::mem::take(&mut task.left);
    if !task.is_late {
        // It may still be our parent, but takes no orphans any more.
        family.forget_wrapper();
    }
    match task.whom {
        Some(Word::Group(group)) => {
            family.group = Some(group);
            // While the wrapper lives, what this leaves without a parent is found among the wrapper's children; so the most comes first.
            if family.has_wrapper() {
                let _ = kill_process_group(group, Signal::KILL);
            }
            end(&family, left, Duration::ZERO, task.grace());
        }
        Some(Word::Single(process)) => {
            family.command = Some(process);
            end(&family, left, Duration::ZERO, task.grace());
        }
        Some(Word::Goodbye) => {}
        _ => end(&family, left, HUNT, task.grace()),
    }
    ExitCode::SUCCESS
}

/// What is to be done.
#[derive(Debug, Default)]
struct Task {
    /// `None`: nobody was told of; [`Word::Goodbye`]: nobody is to end.
    whom: Option<Word>,
    /// The deadline has come, while the wrapper has not ended.
    is_late: bool,
    /// On the clock since boot; `None`: the lock has none, and ends when we do.
    deadline: Option<u64>,
    /// Those that were named one by one.
    left: Vec<Process>,
}

impl Task {
    /// How long whoever is to end may take for that after SIGTERM.
    fn grace(&self) -> Duration {
        match self.deadline {
            _ if self.is_late => Duration::ZERO,
            None => GRACE,
            // An operator may take the lock away at once, whose wrapper is dead: then the next one waits for `--settle`.
            Some(deadline) => {
                let left = deadline.saturating_sub(nanos(since_boot()));
                Duration::from_nanos(left).min(SHORT_GRACE)
            }
        }
    }
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
fn end(family: &Family, mut known: Vec<Process>, at_least: Duration, grace: Duration) {
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

/// Waits until somebody is to end, or nobody any more.
///
/// By a timer on the clock since boot: that of `poll` stands still while the machine is suspended.
fn wait(words: impl AsFd, kept: &mut Vec<OwnedFd>) -> io::Result<Task> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut task = Task::default();
    loop {
        let mut ready = [PollFd::new(&words, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            outcome => outcome?,
        };
        let [words_ready, timer_ready] = ready.map(|fd| !fd.revents().is_empty());
        // The newest word counts, also where the deadline before it has passed by now.
        if words_ready {
            match receive(&words, kept)? {
                None => return Ok(task),
                Some(Word::Keep) => {}
                // Another one may get its number later.
                Some(Word::Left(pid)) => {
                    task.left.retain(|known| known.pid != pid);
                    task.left.extend(Process::of(pid));
                    // Now and then, as a command that runs for years may leave many.
                    if task.left.len().is_power_of_two() {
                        task.left.retain(Process::is_alive);
                    }
                }
                Some(Word::Goodbye) => return Ok(Task { whom: Some(Word::Goodbye), ..task }),
                Some(Word::NoDeadline) => {
                    task.deadline = None;
                    set(&timer, 0)?;
                }
                Some(Word::Deadline(nanos)) => {
                    task.deadline = Some(nanos);
                    set(&timer, nanos)?;
                }
                whom => task.whom = whom,
            }
        } else if timer_ready {
            return Ok(Task { is_late: true, ..task });
        }
    }
}

/// Zero: never.
fn set(timer: impl AsFd, nanos: u64) -> io::Result<()> {
    const SECOND: u64 = 1_000_000_000;
    let moment = Timespec {
        tv_sec: i64::try_from(nanos / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % SECOND).unwrap_or_default(),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: moment };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::family::{MARK, tests::orphaned};
    use super::*;

    #[test]
    fn who_was_not_told_of_is_found() {
        let start = |mark| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env(MARK, mark).spawn().expect("sleep")
        };
        let (mut ours, mut another) = (start("1-23"), start("1-234"));
        end(&orphaned("1-23"), Vec::new(), Duration::ZERO, Duration::from_millis(1));
        let lives = another.try_wait().expect("ours").is_none();
        another.kill().expect("ours");
        assert!(lives, "a mark that begins alike");
        assert!(ours.wait().expect("ours").code().is_none(), "killed");
    }
}
