//! A command that runs under something: started, watched, and ended in time.

use std::env;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::Grant;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    test_kill_process_group, waitpgid,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::process::{Child as Process, Command};
use tokio::time::{Instant, sleep_until};

use super::hidden::{self, Start, Word};
use super::signals::{self, Signals};
use super::wanted::Hold;
use crate::args::{Child as Options, OnLost};
use crate::exit::{self, Failure, Outcome, say};
use crate::settings;

/// How long before its deadline the lock counts as lost for the command: it takes that long to end it.
const KILL_LEAD: Duration = Duration::from_millis(20);
/// How long before the deadline the watch does it, if we could not.
const WATCH_LEAD: Duration = Duration::from_millis(10);
/// From SIGTERM to SIGKILL when the store has given the lock away: another command starts after `--settle`.
const REVOKED_GRACE: Duration = Duration::from_millis(50);
/// The same without a lease.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// How often the watch is told the deadline, in parts of the lease.
const UPDATES: u32 = 8;
/// How long a process may take to be gone that was sent SIGKILL: it may be within the kernel.
const KILLED: Duration = Duration::from_secs(1);
/// How often it is looked whether a group has ended.
const POLL: Duration = Duration::from_millis(2);

/// A command that is ready to start: ourselves, waiting for the word. It ends when this is dropped.
pub(crate) struct Prepared<'a> {
    process: Process,
    pid: Pid,
    watch: Watch,
    start: PipeWriter,
    /// From which it reads the word: it opens our end, as that cannot be handed down without unsafe code.
    _word: PipeReader,
    options: &'a Options,
    quiet: bool,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The command's own code, or the signal's.
    code: u8,
    /// It was stopped, as what it ran under was lost, or about to be.
    was_stopped: bool,
}

/// A command that runs.
struct Running<'a> {
    command: Prepared<'a>,
    /// What it runs under; `None`: nothing that could be lost.
    hold: Option<Hold>,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    /// When SIGKILL follows; `None`: the command need not end.
    kill_at: Option<Instant>,
    was_stopped: bool,
    /// The loss was told, and not only feared.
    is_lost: bool,
}

/// Fails as a shell would if there is no such program.
fn find(command: &[OsString]) -> Outcome {
    let Some(program) = command.first() else { return Err(Failure::usage("no command")) };
    let path = Path::new(program);
    let places: Vec<PathBuf> = if path.components().count() > 1 {
        vec![path.to_owned()]
    } else {
        let dirs = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
        env::split_paths(&dirs).map(|dir| dir.join(path)).collect()
    };
    let files: Vec<_> = places.iter().filter_map(|place| place.metadata().ok()).collect();
    let is_program =
        |file: &std::fs::Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    let shown = path.display();
    match (files.iter().any(is_program), files.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::new(exit::NOT_FOUND, format!("{shown}: command not found"))),
        (false, false) => {
            Err(Failure::new(exit::NOT_EXECUTABLE, format!("{shown}: not executable")))
        }
    }
}

impl<'a> Prepared<'a> {
    /// Fails as a shell would if there is no such program.
    pub(crate) fn new(command: &[OsString], options: &'a Options, quiet: bool) -> Outcome<Self> {
        find(command)?;
        let failed = |error| Failure::system("cannot start the command", &error);
        let watch = Watch::new().map_err(failed)?;
        let (word, start) = io::pipe().map_err(failed)?;
        let own_id = std::process::id();
        let path = |pipe: &dyn AsRawFd| format!("/proc/{own_id}/fd/{}", pipe.as_raw_fd());
        let mut ourselves = Command::new("/proc/self/exe");
        ourselves.arg0("coordination").arg(hidden::COMMAND).arg(own_id.to_string());
        match options.foreground {
            true => ourselves.arg(hidden::SINGLE),
            false => ourselves.arg(hidden::GROUP).process_group(0),
        };
        ourselves.arg(path(&watch.pipe)).arg(path(&word)).args(command).env_remove(settings::URL);
        let process = ourselves.kill_on_drop(true).spawn().map_err(failed)?;
        let pid = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| Failure::new(exit::SYSTEM, "the command has no process id"))?;
        Ok(Self { process, pid, watch, start, _word: word, options, quiet })
    }

    /// Runs it to its end, and lets go of what it runs under, or before if `release_after` says so.
    pub(crate) async fn run(
        self,
        hold: Option<Hold>,
        release_after: Option<Duration>,
        signals: &mut Signals,
    ) -> Outcome<u8> {
        let is_ignored = self.options.on_lost == OnLost::Ignore;
        let grace = grace(self.options, hold.as_ref())?;
        let (kill_at, was_stopped, is_lost) = (None, false, false);
        let mut running = Running { command: self, hold, grace, kill_at, was_stopped, is_lost };
        running.start()?;
        let release_at = release_after.map(|after| Instant::now() + after);
        let ended = running.supervise(signals, release_at).await;
        let was_lost = match running.hold.take() {
            Some(hold) => hold.release().await.is_err_and(|error| is_loss(&error)),
            None => false,
        };
        let ended = ended?;
        if (ended.was_stopped || was_lost) && !is_ignored {
            if was_lost && !ended.was_stopped {
                say(format_args!("the lock was lost while the command ran"));
            }
            return Ok(exit::LOST);
        }
        Ok(ended.code)
    }
}

fn is_loss(error: &coordination::Error) -> bool {
    matches!(error.kind(), coordination::ErrorKind::Lost | coordination::ErrorKind::Closed)
}

/// From SIGTERM to SIGKILL.
fn grace(options: &Options, hold: Option<&Hold>) -> Outcome<Duration> {
    let lease = hold.and_then(|hold| hold.remaining());
    match (options.kill_after, lease) {
        (Some(wanted), Some(lease)) if wanted > lease / 3 => Err(Failure::usage(format!(
            "--kill-after is {wanted:?}, and the lease leaves {:?} at most: take a longer lease, as in `?ttl=1m`",
            lease / 3
        ))),
        (Some(wanted), _) => Ok(wanted),
        (None, Some(lease)) => Ok(lease / 5),
        (None, None) => Ok(DEFAULT_GRACE),
    }
}

impl Running<'_> {
    /// Gives the word.
    fn start(&mut self) -> Outcome {
        let mut environment = Vec::new();
        if let Some(hold) = &self.hold {
            if !hold.is_held() {
                let what = format!("{:?} was lost before the command started", hold.name());
                return Err(Failure::new(exit::LOST, what));
            }
            let deadline = hold.remaining().map(unix_time);
            environment.push(("LOCK_NAME", hold.name().to_owned()));
            environment.push(("LOCK_TOKEN", hold.token().to_string()));
            environment.push(("LOCK_DEADLINE", deadline.unwrap_or_default()));
        }
        let failed = |error| Failure::system("cannot start the command", &error);
        // What the command leaves behind becomes ours, so that its end can be seen: not every first process of a container
        // looks after orphans.
        set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
        // First, so that no command is ever without it.
        self.command.watch.start().map_err(failed)?;
        self.command.watch.update(self.hold.as_deref());
        self.command.start.write_all(&Start(&environment).bytes()).map_err(failed)
    }

    /// Passes signals on, and ends the command in time, until it has ended.
    async fn supervise(
        &mut self,
        signals: &mut Signals,
        mut release_at: Option<Instant>,
    ) -> Outcome<Ended> {
        let is_ignored = self.command.options.on_lost == OnLost::Ignore;
        loop {
            let bound = self.hold.as_deref().filter(|_| !is_ignored);
            self.command.watch.update(bound);
            let next_look = bound.and_then(Grant::remaining).map(|left| {
                let due = left.saturating_sub(self.lead());
                Instant::now() + due.min(left / UPDATES).max(Duration::from_millis(1))
            });
            tokio::select! {
                biased;
                status = self.command.process.wait() => {
                    let status = status.map_err(|error| Failure::system("cannot wait for the command", &error))?;
                    return Ok(self.end(status).await);
                }
                number = signals.next() => self.pass_on(number),
                reason = lost(bound), if !self.is_lost => {
                    self.is_lost = true;
                    let grace = self.grace.min(REVOKED_GRACE);
                    self.stop(format_args!("lost {}: {reason}", self.shown()), grace);
                }
                () = at(self.kill_at) => self.kill(),
                () = at(release_at) => {
                    release_at = None;
                    if let Some(hold) = self.hold.take() {
                        tokio::spawn(hold.release());
                    }
                }
                () = at(next_look), if !self.was_stopped => self.look_at_deadline(),
            }
        }
    }

    /// How long before the deadline the command's end begins.
    fn lead(&self) -> Duration {
        match self.command.options.on_lost {
            OnLost::Term => self.grace + KILL_LEAD,
            OnLost::Kill | OnLost::Ignore => KILL_LEAD,
        }
    }

    /// Begins to end the command when there is just enough time left for that.
    fn look_at_deadline(&mut self) {
        let left = self.hold.as_deref().and_then(Grant::remaining);
        if let Some(left) = left.filter(|left| *left <= self.lead()) {
            let grace = left.saturating_sub(KILL_LEAD);
            self.stop(
                format_args!("about to lose {}: the store does not answer", self.shown()),
                grace,
            );
        }
    }

    fn shown(&self) -> String {
        self.hold.as_deref().map(|grant| format!("{:?}", grant.name())).unwrap_or_default()
    }

    /// Begins to end the command, or ends it sooner.
    fn stop(&mut self, why: std::fmt::Arguments<'_>, grace: Duration) {
        self.was_stopped = true;
        if !self.command.quiet {
            say(format_args!("{why}; stopping the command"));
        }
        match self.command.options.on_lost {
            OnLost::Kill => self.kill(),
            OnLost::Term | OnLost::Ignore => {
                self.signal(Signal::TERM);
                // It may have been stopped: a signal is of no use to who does not run.
                self.signal(Signal::CONT);
                // Never later than was said before: that was in time for the deadline.
                let kill_at = Instant::now() + grace;
                self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
            }
        }
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by now; its number is not given to another until we have waited for it.
        let _ = match self.command.options.foreground {
            true => kill_process(self.command.pid, signal),
            false => kill_process_group(self.command.pid, signal),
        };
    }

    fn pass_on(&self, number: i32) {
        // In the terminal's foreground those of its keys have reached the command by themselves.
        let is_by_key = matches!(number, signals::INT | signals::QUIT | signals::TSTP);
        if !(self.command.options.foreground && is_by_key)
            && let Some(signal) = Signal::from_named_raw(number)
        {
            self.signal(signal);
        }
        // While we stand still, so does the command; and the watch ends it if that takes too long.
        if number == signals::TSTP {
            signals::stop_ourselves();
        }
    }

    /// The command has ended; ends what it left in its group, before the lock goes to another.
    async fn end(&mut self, status: ExitStatus) -> Ended {
        if !self.command.options.foreground && is_there(self.command.pid) {
            let _ = kill_process_group(self.command.pid, Signal::TERM);
            let start = Instant::now();
            while is_there(self.command.pid) && start.elapsed() < self.grace + KILLED {
                let is_held = self.hold.as_ref().is_none_or(|hold| hold.is_held());
                if self.was_stopped || !is_held || start.elapsed() >= self.grace {
                    let _ = kill_process_group(self.command.pid, Signal::KILL);
                }
                tokio::time::sleep(POLL).await;
            }
        }
        self.command.watch.tell(Word::Goodbye);
        let by_signal = status.signal().map(exit::by_signal);
        let own = status.code().and_then(|code| u8::try_from(code).ok());
        Ended { code: own.or(by_signal).unwrap_or(exit::SYSTEM), was_stopped: self.was_stopped }
    }
}

/// Whether the group has a process that lives.
fn is_there(group: Pid) -> bool {
    // Those that have ended and are ours count until they are waited for.
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
    test_kill_process_group(group).is_ok()
}

async fn lost(grant: Option<&Grant>) -> coordination::LossReason {
    match grant {
        Some(grant) => grant.lost().await,
        None => std::future::pending().await,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn unix_time(left: Duration) -> String {
    let deadline = SystemTime::now() + left;
    let since = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}", since.as_secs(), since.subsec_millis())
}

/// The process that ends the command's group if we cannot.
struct Watch {
    pipe: PipeWriter,
    /// What it is to read; `None`: it has started.
    reader: Option<PipeReader>,
    told: Option<Word>,
}

impl Watch {
    fn new() -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        Ok(Self { pipe, reader: Some(reader), told: None })
    }

    fn start(&mut self) -> io::Result<()> {
        use std::os::unix::process::CommandExt;

        let Some(told) = self.reader.take() else { return Ok(()) };
        let mut command = std::process::Command::new("/proc/self/exe");
        command.arg0("coordination").arg(hidden::WATCH).stdin(told);
        // It must not hold open what our caller reads, nor get what its terminal sends.
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).env_clear();
        // Not waited for: it ends after us.
        command.spawn().map(drop)
    }

    /// Says until when the command may run, if that has changed by much.
    fn update(&mut self, grant: Option<&Grant>) {
        let deadline = grant.and_then(Grant::remaining).map(|left| {
            let now = clock_gettime(ClockId::Boottime);
            let now = Duration::new(
                now.tv_sec.unsigned_abs(),
                u32::try_from(now.tv_nsec).unwrap_or_default(),
            );
            let moment = now + left.saturating_sub(WATCH_LEAD);
            // In hundredths of a second, so that the same deadline is not told again and again.
            u64::try_from(moment.as_millis() / 10 * 10_000_000).unwrap_or(u64::MAX)
        });
        let word = deadline.map_or(Word::NoDeadline, Word::Deadline);
        if self.told != Some(word) {
            self.told = Some(word);
            self.tell(word);
        }
    }

    fn tell(&mut self, word: Word) {
        // Should it have been killed, we are still there.
        let _ = self.pipe.write_all(&word.bytes());
    }
}
