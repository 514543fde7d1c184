//! What the watch is to do, and the wait until it is time for that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::newest::Newest;
use super::words::{Word, receive};
use crate::run::alive::Process;

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
pub(super) fn wait(words: impl AsFd, newest: &Newest, kept: &mut Vec<OwnedFd>) -> io::Result<Task> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut task = Task::default();
    loop {
        let mut ready = [PollFd::new(&words, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            outcome => outcome?,
        };
        let [words_ready, timer_ready] = ready.map(|fd| !fd.revents().is_empty());
        // The newest word counts, also where the deadline before it has passed by now; and where we stood still, the socket may have
        // had no room for it.
        let word = match words_ready {
            true => receive(&words, kept)?,
            false if timer_ready => match newest.get() {
                Some(word) if task.deadline != deadline_in(word) => Some(word),
                _ => return Ok(Task { is_late: true, ..task }),
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
            whom => task.whom = whom,
        }
    }
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
    use crate::run::alive;

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
