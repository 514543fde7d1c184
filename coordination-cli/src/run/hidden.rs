//! The two processes that stand by a command, started by us as ourselves under names that no user types.
//!
//! `pre_exec` would be the usual way to make a child die with its parent, and is unsafe. So the command is
//! started by ourselves once more, as [`become_command`], which asks for that and then becomes the command. It is
//! started at first, and waits for the word: by the time that the lock is ours, all is ready.
//!
//! That reaches only the command itself, not what it has started. And a wrapper that is stopped, or killed,
//! stops nothing. So there is a [`watch`] over the process group: it knows until when the lock is good, and
//! ends the group at that moment, or when the wrapper is gone without having said goodbye.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, kill_process_group, set_parent_process_death_signal,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::exit::{self, say};

/// Our first argument in the process that becomes the command; then come the wrapper's process id, what is to end
/// with it, where the wrapper has the pipe to the watch, and where the one by which it gives the word.
pub(crate) const COMMAND: &str = "__command";
/// Our first argument in the process that watches.
pub(crate) const WATCH: &str = "__watch";
/// The process group of the command ends, which it leads.
pub(crate) const GROUP: &str = "group";
/// The command alone ends.
pub(crate) const SINGLE: &str = "single";

/// What the watch is told: eight bytes each, which a pipe does not tear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
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

    pub(crate) fn bytes(self) -> [u8; 8] {
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

/// The word to start: what the command's environment has besides ours, and where an empty text takes something out.
pub(crate) struct Start<'a>(pub(crate) &'a [(&'a str, String)]);

impl Start<'_> {
    /// Its length, and then names and values, each with a zero at its end.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let text: String =
            self.0.iter().map(|(name, value)| format!("{name}\0{value}\0")).collect();
        let length = u32::try_from(text.len()).unwrap_or_default();
        [&length.to_ne_bytes(), text.as_bytes()].concat()
    }

    /// Waits for it.
    fn read(from: &mut impl Read) -> io::Result<Vec<(String, String)>> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut text = vec![0; usize::try_from(u32::from_ne_bytes(length)).unwrap_or_default()];
        from.read_exact(&mut text)?;
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        let words: Vec<_> = text.split_terminator('\0').collect();
        Ok(words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
    }
}

/// Becomes the command when it is told to; dies with the wrapper.
pub(crate) fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = words.next().and_then(|id| id.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(what), Some(watch), Some(start), Some(program)) =
        (parent, words.next(), words.next(), words.next(), words.next())
    else {
        return ExitCode::from(exit::USAGE);
    };
    let bound = bind(parent, what == GROUP, Path::new(&watch));
    let environment = bound.and_then(|()| Start::read(&mut File::open(start)?));
    let environment = match environment {
        Ok(environment) => environment,
        Err(error) => {
            say(format_args!("cannot bind the command to us: {error}"));
            return ExitCode::from(exit::SYSTEM);
        }
    };
    let mut command = Command::new(&program);
    for (name, value) in environment {
        match value.as_str() {
            "" => command.env_remove(name),
            _ => command.env(name, value),
        };
    }
    let error = command.args(words).exec();
    say(format_args!("{}: {}", program.to_string_lossy(), plain(&error)));
    ExitCode::from(code_of(&error))
}

/// From here on we die with the wrapper, and the watch knows of us.
fn bind(parent: Pid, is_group: bool, pipe: &Path) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before we asked.
    if getppid() != Some(parent) {
        return Err(io::Error::other("the wrapper has ended"));
    }
    // The wrapper's own end, which cannot be handed down without unsafe code. We tell of ourselves, as the wrapper
    // might die between our start and its word, and we may have children by then.
    let own = getpid();
    let word = if is_group { Word::Group(own) } else { Word::Single(own) };
    File::options().write(true).open(pipe)?.write_all(&word.bytes())
}

/// A shell's code for a command that cannot be started.
pub(crate) fn code_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE }
}

/// Without the number.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Ends what stdin tells of at its deadline, or at the end of stdin without a goodbye.
pub(crate) fn watch() -> ExitCode {
    // Not std's, which reads ahead: `poll` does not know of what is in its buffer.
    let Ok(told) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::from(exit::SYSTEM);
    };
    // It may be gone by then.
    let _ = match wait(&mut File::from(told)) {
        Ok(Some(Word::Group(group))) => kill_process_group(group, Signal::KILL),
        Ok(Some(Word::Single(process))) => kill_process(process, Signal::KILL),
        _ => Ok(()),
    };
    ExitCode::SUCCESS
}

/// Answers what is to end, if anything is.
///
/// By a timer on the clock since boot: that of `poll` stands still while the machine is suspended.
fn wait(told: &mut File) -> io::Result<Option<Word>> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut watched = None;
    loop {
        let mut ready = [PollFd::new(&*told, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            outcome => outcome?,
        };
        let [told_ready, timer_ready] = ready.map(|fd| !fd.revents().is_empty());
        // The newest word counts, also where the deadline before it has passed by now.
        if told_ready {
            match Word::read(told) {
                None => return Ok(watched),
                Some(Word::Goodbye) => return Ok(None),
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
    fn what_a_command_is_told_comes_back() {
        let told = [("A", "x\n=".to_owned()), ("B", String::new()), ("C", "ü".to_owned())];
        let expected: Vec<_> =
            told.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(Start::read(&mut &Start(&told).bytes()[..]).expect("whole"), expected);
        assert_eq!(Start::read(&mut &Start(&[]).bytes()[..]).expect("whole"), []);
    }
}
