//! What the watch is to do, and the wait until it is time for that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::LEAD;
use super::newest::Newest;
use super::words::{Word, receive};
use crate::run::alive::{self, Process};

/// From SIGTERM to SIGKILL when the wrapper has died: where the lock is held until we end, and elsewhere.
const GRACE: Duration = Duration::from_secs(1);
const SHORT_GRACE: Duration = Duration::from_millis(50);

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Task {
    /// `None`: nobody was told of; [`Word::Goodbye`]: nobody is to end.
    pub(super) whom: Option<Word>,
    /// The deadline has come, while the wrapper has not ended.
    pub(super) is_late: bool,
    /// On the clock since boot; `None`: the lock has none, and ends when we do.
    deadline: Option<u64>,
    /// Those that were named one by one.
    pub(super) left: Vec<Process>,
}

impl Task {
    /// Nobody is to end.
    fn goodbye(self) -> Self {
        Self { whom: Some(Word::Goodbye), ..self }
    }

    /// One more who is to end, unless another one has its number by now.
    fn note(&mut self, pid: Pid, began: u64) {
        self.left.retain(|known| known.pid != pid);
        self.left.extend(still(pid, began));
        // Now and then, as a command that runs for years may leave many.
        if self.left.len().is_power_of_two() {
            self.left.retain(Process::is_alive);
        }
    }

    /// Whether the lock is still good at this moment, for all that we were told; without a deadline nobody asks.
    fn is_in_time(&self) -> bool {
        let deadline = self.deadline.map(|deadline| deadline.saturating_add(nanos(LEAD)));
        deadline.is_some_and(|deadline| nanos(since_boot()) < deadline)
    }

    /// How long whoever is to end may take for that after SIGTERM.
    pub(super) fn grace(&self) -> Duration {
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

/// Waits until somebody is to end, or nobody any more.
///
/// By a timer on the clock since boot: that of `poll` stands still while the machine is suspended.
///
/// If the command ends meanwhile, and in time, that is noted for the wrapper; and if it lives when it is to end, so is that.
pub(super) fn wait(words: impl AsFd, newest: &Newest, kept: &mut Vec<OwnedFd>) -> io::Result<Task> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let (mut task, mut command) = (Task::default(), None::<OwnedFd>);
    loop {
        let mut files =
            vec![PollFd::new(&words, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        files.extend(command.iter().map(|command| PollFd::new(command, PollFlags::IN)));
        match poll(&mut files, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            outcome => outcome?,
        };
        let is_ready = |place: usize| files.get(place).is_some_and(|fd| !fd.revents().is_empty());
        let (words_ready, timer_ready, has_ended) = (is_ready(0), is_ready(1), is_ready(2));
        if has_ended {
            command = None;
            if task.is_in_time() {
                newest.note_end();
            }
        }
        // The newest word counts, also where the deadline before it has passed by now; and where we stood still, the socket may have
        // had no room for it.
        let word = match words_ready {
            true => receive(&words, kept)?,
            false if timer_ready => match newest.get() {
                Some(word) if task.deadline != deadline_in(word) => Some(word),
                _ => {
                    // First, so that the wrapper finds it when it sees the command dead. What had ended before is not ended by us.
                    if command.is_some() {
                        newest.note_kill();
                    }
                    return Ok(Task { is_late: true, ..task });
                }
            },
            false => continue,
        };
        match word {
            None if newest.get() == Some(Word::Goodbye) => return Ok(task.goodbye()),
            None => return Ok(task),
            Some(Word::Goodbye) => return Ok(task.goodbye()),
            Some(Word::Keep) => {}
            Some(Word::Left(pid, began)) => task.note(pid, began),
            Some(Word::NoDeadline | Word::Deadline(_)) => {
                let newest = newest.get().or(word).and_then(deadline_in);
                task.deadline = newest;
                set(&timer, newest.unwrap_or_default())?;
            }
            Some(Word::Group(pid, began) | Word::Single(pid, began)) => {
                task.whom = word;
                command = opened(pid, began);
            }
            Some(Word::Numberless) => {
                task.whom = word;
                command = None;
            }
        }
    }
}

/// A file that can be read once this process has ended; `None`: another one has its number by now, or the kernel has no such files.
fn opened(pid: Pid, began: u64) -> Option<OwnedFd> {
    let file = pidfd_open(pid, PidfdFlags::empty()).ok();
    // After it was opened: while the number is that of the one who is meant, so is the file.
    file.filter(|_| known(began).is_some_and(|began| alive::started(pid) == Some(began)))
}

/// The deadline that a word tells; `None`: there is none any more.
fn deadline_in(word: Word) -> Option<u64> {
    match word {
        Word::Deadline(nanos) => Some(nanos),
        _ => None,
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

/// The process of this number, if it is the one that began then.
pub(super) fn still(process: Pid, began: u64) -> Option<Process> {
    let is_meant = |process: &Process| known(began).is_none_or(|began| process.started == began);
    Process::of(process).filter(is_meant)
}

/// When a process began of which a word tells.
pub(super) fn known(began: u64) -> Option<u64> {
    (began > 0).then_some(began)
}

pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::words::send;
    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(300);

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket")
    }

    /// A watch that stood still finds old deadlines in its socket, and the newest had no room there.
    #[test]
    fn a_watch_that_stood_still_kills_nobody_for_an_old_deadline() {
        let now = nanos(since_boot());
        for ends_well in [true, false] {
            let ((ours, theirs), newest) = (sockets(), Newest::new());
            while send(&ours, Word::Deadline(now - 1), None).is_ok() {}
            let left = if ends_well { LONG } else { SHORT };
            newest.set(Word::Deadline(now + nanos(left)));
            let task = std::thread::scope(|scope| {
                let watch = scope.spawn(|| wait(&theirs, &newest, &mut Vec::new()));
                if ends_well {
                    // By now it has read all that there is.
                    std::thread::sleep(Duration::from_millis(100));
                    newest.set(Word::Goodbye);
                    drop(ours);
                }
                watch.join().expect("no panic").expect("it can wait")
            });
            assert_eq!(task.is_late, !ends_well);
            match ends_well {
                true => assert_eq!(task.whom, Some(Word::Goodbye)),
                // And when the newest has come it does kill.
                false => assert!(since_boot() >= Duration::from_nanos(now) + SHORT),
            }
        }
    }

    /// The wrapper may stand still, and cannot know then when its command has ended.
    #[test]
    fn a_command_that_ends_in_time_is_noted_and_one_that_ends_late_is_not() {
        let start = || std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let told = |left: Duration, child: &std::process::Child, newest: &Newest| {
            let ((ours, theirs), pid) = (sockets(), Pid::from_child(child));
            let began = alive::started(pid).expect("it is there");
            let deadline = Word::Deadline(nanos(since_boot() + left));
            newest.set(deadline);
            for word in [deadline, Word::Single(pid, began)] {
                send(&ours, word, None).expect("there is room");
            }
            (ours, theirs)
        };
        let (mut child, newest) = (start(), Newest::new());
        let (ours, theirs) = told(LONG, &child, &newest);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| wait(&theirs, &newest, &mut Vec::new()));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!newest.has_end(), "it lives");
            child.kill().expect("ours");
            let begun = std::time::Instant::now();
            while !newest.has_end() && begun.elapsed() < LONG / 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            newest.set(Word::Goodbye);
            drop(ours);
            watch.join().expect("no panic").expect("it can wait");
        });
        assert!(newest.has_end());
        child.wait().expect("ours");

        // It is dead when we look, and its deadline has passed: nobody knows which was first.
        let (mut child, newest) = (start(), Newest::new());
        let (_ours, theirs) = told(Duration::ZERO, &child, &newest);
        child.kill().expect("ours");
        std::thread::sleep(10 * LEAD);
        let task = wait(&theirs, &newest, &mut Vec::new()).expect("it can wait");
        assert!(task.is_late && !newest.has_end());
        child.wait().expect("ours");

        // It lives at its deadline, and whoever watches is about to end it.
        let (mut child, newest) = (start(), Newest::new());
        let (_ours, theirs) = told(SHORT, &child, &newest);
        let task = wait(&theirs, &newest, &mut Vec::new()).expect("it can wait");
        assert!(task.is_late && newest.has_kill() && !newest.has_end());
        child.kill().and_then(|()| child.wait()).expect("ours");
    }

    /// Words that are read late may be of numbers that others have by now.
    #[test]
    fn who_has_a_number_by_now_is_nobody_who_was_told_of() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = Pid::from_child(&child);
        let began = alive::started(pid).expect("it lives");
        for (told, expected) in [(began, 1), (0, 1), (began - 1, 0)] {
            let (ours, theirs) = sockets();
            send(&ours, Word::Left(pid, told), None).expect("there is room");
            drop(ours);
            let task = wait(&theirs, &Newest::new(), &mut Vec::new()).expect("it can wait");
            assert_eq!((task.left.len(), task.is_late), (expected, false));
            assert_eq!(still(pid, told).is_some(), expected > 0);
        }
        child.kill().and_then(|()| child.wait()).expect("ours");
    }
}
