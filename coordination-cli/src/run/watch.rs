//! The process that ends a command if we cannot: when we are killed, and when we stand still beyond the deadline.
//!
//! It is ourselves, started once more under a name that no user types ([`WATCH`]), in a process group of its own.
//! It reads [`Word`]s from its stdin: whom to watch, and until when. At a deadline that nobody has moved on, or when
//! the pipe ends without a goodbye, it kills.
//!
//! The usual means, a signal from the kernel at the parent's death, is unsafe code here or a process more on the way of
//! every start, and reaches neither what the command has started nor a command whose wrapper stands still.
//!
//! A wrapper may be killed when the command is there, and the watch not told of it. So each command has the
//! [`MARK`] of its run in its environment, and a watch that was told of none looks for it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use coordination::Grant;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::process::{Child, Command};
use tokio::time::sleep_until;

use crate::exit;

/// Our first argument in the process that watches; then comes the run's mark.
pub(crate) const WATCH: &str = "__watch";
/// The variable in the command's environment that says of which run it is.
pub(super) const MARK: &str = "COORDINATION_RUN";
/// How long before the deadline the watch acts, if we could not.
const LEAD: Duration = Duration::from_millis(10);
/// How long a command is looked for that nobody has told of: it was being started when we were killed.
const HUNT: Duration = Duration::from_secs(1);
/// How often it is looked for.
const HUNT_STEP: Duration = Duration::from_millis(10);
/// A watch that was killed is started anew, at most this often.
const RESTART: Duration = Duration::from_secs(1);

/// What the watch is told: eight bytes each, which a pipe does not tear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// This process group is watched.
    Group(Pid),
    /// This process is watched.
    Single(Pid),
    /// It must not live beyond this moment, in nanoseconds on the clock since boot.
    Deadline(u64),
    /// It may live as long as it likes.
    NoDeadline,
    /// Nothing more is to be watched.
    Goodbye,
}

impl Word {
    const GROUP: u64 = 1 << 63;
    const SINGLE: u64 = 1 << 62;
    const NO_DEADLINE: u64 = Self::SINGLE - 1;
    const GOODBYE: u64 = 0;

    fn bytes(self) -> [u8; 8] {
        let id = |pid: Pid| u64::from(pid.as_raw_nonzero().get().unsigned_abs());
        let number = match self {
            Self::Group(pid) => Self::GROUP | id(pid),
            Self::Single(pid) => Self::SINGLE | id(pid),
            Self::Deadline(nanos) => nanos.clamp(1, Self::NO_DEADLINE - 1),
            Self::NoDeadline => Self::NO_DEADLINE,
            Self::Goodbye => Self::GOODBYE,
        };
        number.to_ne_bytes()
    }

    /// `None`: no word of ours.
    fn read(from: &mut impl Read) -> Option<Self> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes).ok()?;
        let number = u64::from_ne_bytes(bytes);
        let pid = |tag: u64| i32::try_from(number & !tag).ok().and_then(Pid::from_raw);
        match number {
            Self::GOODBYE => Some(Self::Goodbye),
            Self::NO_DEADLINE => Some(Self::NoDeadline),
            _ if number & Self::GROUP != 0 => pid(Self::GROUP).map(Self::Group),
            _ if number & Self::SINGLE != 0 => pid(Self::SINGLE).map(Self::Single),
            nanos => Some(Self::Deadline(nanos)),
        }
    }
}

/// Our side of it. It is told goodbye when this is dropped.
pub(super) struct Watch {
    process: Child,
    started: Instant,
    pipe: PipeWriter,
    mark: String,
    watched: Option<Word>,
    deadline: Option<Word>,
}

impl Watch {
    pub(super) fn start() -> io::Result<Self> {
        let now = clock_gettime(ClockId::Boottime);
        // No other process of this host has both, also after its numbers have come round.
        let mark = format!("{}-{}{:09}", std::process::id(), now.tv_sec, now.tv_nsec);
        let (process, pipe) = spawn(&mark)?;
        let started = Instant::now();
        Ok(Self { process, started, pipe, mark, watched: None, deadline: None })
    }

    /// What the command's environment has as [`MARK`].
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Says whom to watch.
    pub(super) fn look_at(&mut self, whom: Word) {
        self.watched = Some(whom);
        self.tell(whom);
    }

    /// Says until when the command may run, if that has changed by much.
    pub(super) fn update(&mut self, grant: Option<&Grant>) {
        let deadline = grant.and_then(Grant::remaining).map(|left| {
            let now = clock_gettime(ClockId::Boottime);
            let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
            let now = Duration::new(now.tv_sec.unsigned_abs(), nanos);
            let moment = now + left.saturating_sub(LEAD);
            // In hundredths of a second, so that the same deadline is not told again and again.
            u64::try_from(moment.as_millis() / 10 * 10_000_000).unwrap_or(u64::MAX)
        });
        let word = deadline.map_or(Word::NoDeadline, Word::Deadline);
        if self.deadline != Some(word) {
            self.deadline = Some(word);
            self.tell(word);
        }
    }

    /// Starts another one whenever it was killed. Never ends, and can be dropped at any time.
    pub(super) async fn keep(&mut self) -> std::convert::Infallible {
        loop {
            // An error would be that there is no such child, which is the same to us.
            let _ = self.process.wait().await;
            sleep_until((self.started + RESTART).into()).await;
            self.started = Instant::now();
            if let Ok((process, pipe)) = spawn(&self.mark) {
                (self.process, self.pipe) = (process, pipe);
                for word in [self.watched, self.deadline].into_iter().flatten() {
                    self.tell(word);
                }
            }
        }
    }

    fn tell(&mut self, word: Word) {
        // Should it have been killed, or stand still with the pipe full, we are still there, and tell it again.
        if self.pipe.write_all(&word.bytes()).is_err() {
            self.deadline = None;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tell(Word::Goodbye);
    }
}

fn spawn(mark: &str) -> io::Result<(Child, PipeWriter)> {
    let (words, pipe) = io::pipe()?;
    ioctl_fionbio(&pipe, true)?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("coordination").arg(WATCH).arg(mark).stdin(words);
    // It must not hold open what our caller reads, nor get what its terminal sends.
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).env_clear();
    // Not killed with us: it ends after us.
    Command::from(command).spawn().map(|process| (process, pipe))
}

/// Ends what stdin tells of at its deadline, or at the end of stdin without a goodbye.
pub(crate) fn watch(mark: &OsStr) -> ExitCode {
    // Not std's, which reads ahead: `poll` does not know of what is in its buffer.
    let Ok(words) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::from(exit::SYSTEM);
    };
    // It may be gone by then.
    let _ = match wait(&mut File::from(words)) {
        Ok(Some(Word::Group(group))) => kill_process_group(group, Signal::KILL),
        Ok(Some(Word::Single(process))) => kill_process(process, Signal::KILL),
        Ok(Some(Word::Goodbye)) => Ok(()),
        _ => {
            hunt(mark);
            Ok(())
        }
    };
    ExitCode::SUCCESS
}

/// Answers whom to end; `None`: nobody was told of; [`Word::Goodbye`]: nobody is to end.
///
/// By a timer on the clock since boot: that of `poll` stands still while the machine is suspended.
fn wait(words: &mut File) -> io::Result<Option<Word>> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut watched = None;
    loop {
        let mut ready = [PollFd::new(&*words, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            outcome => outcome?,
        };
        let [words_ready, timer_ready] = ready.map(|fd| !fd.revents().is_empty());
        // The newest word counts, also where the deadline before it has passed by now.
        if words_ready {
            match Word::read(words) {
                None => return Ok(watched),
                Some(Word::Goodbye) => return Ok(Some(Word::Goodbye)),
                Some(Word::NoDeadline) => set(&timer, 0)?,
                Some(Word::Deadline(nanos)) => set(&timer, nanos)?,
                whom => watched = whom,
            }
        } else if timer_ready {
            return Ok(watched);
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

/// Kills what has this mark in its environment, for a while: it may be about to be born.
fn hunt(mark: &OsStr) {
    let entry = [MARK.as_bytes(), b"=", mark.as_encoded_bytes()].concat();
    let start = Instant::now();
    while start.elapsed() < HUNT {
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let id = process.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = id.and_then(Pid::from_raw) else { continue };
            // Another user's cannot be read, and could not be killed.
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            if pid != getpid() && environment.split(|byte| *byte == 0).any(|one| one == entry) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(HUNT_STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        let pid = Pid::from_raw(i32::MAX).expect("not zero");
        for word in [
            Word::Group(pid),
            Word::Single(getpid()),
            Word::Deadline(1),
            Word::Deadline(Word::NO_DEADLINE - 1),
            Word::NoDeadline,
            Word::Goodbye,
        ] {
            assert_eq!(Word::read(&mut &word.bytes()[..]), Some(word));
        }
        assert_eq!(Word::Deadline(u64::MAX).bytes(), Word::Deadline(Word::NO_DEADLINE - 1).bytes());
        assert_eq!(Word::read(&mut &[0; 7][..]), None);
    }

    #[test]
    fn who_was_not_told_of_is_found() {
        let start = |mark| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env(MARK, mark).spawn().expect("sleep")
        };
        let (mut ours, mut another) = (start("1-23"), start("1-234"));
        hunt(OsStr::new("1-23"));
        let lives = another.try_wait().expect("ours").is_none();
        another.kill().expect("ours");
        assert!(lives, "a mark that begins alike");
        assert!(ours.wait().expect("ours").code().is_none(), "killed");
    }
}
