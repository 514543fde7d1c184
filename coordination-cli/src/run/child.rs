//! A command that runs under something: started, watched, and ended in time.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::{Claim, Coordinator};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    waitpid,
};
use tokio::io::AsyncWriteExt;
use tokio::process::Child as Process;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::alive::{self, Process as Living};
use super::around::{self, HELD};
use super::family::{self, Family, MARK};
use super::signals::{self, Signals};
use super::started;
use super::wanted::Hold;
use super::watch::{Watch, Word, new_mark};
use crate::args::{Child as Options, OnLost, Store};
use crate::exit::{self, Failure, Outcome, say};
use crate::settings::HandedOn;

mod ending;

/// How long before its deadline the lock counts as lost for the command: it takes that long to end it.
const KILL_LEAD: Duration = Duration::from_millis(20);
/// From SIGTERM to SIGKILL when the store has given the lock away: another command starts after `--settle`.
const REVOKED_GRACE: Duration = Duration::from_millis(50);
/// The same without a lease.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// How often the watch is told the deadline, in parts of the lease.
const UPDATES: u32 = 8;

/// A command that can be started: there is such a program, and who watches over it is there or about to be.
pub(crate) struct Prepared<'a> {
    program: PathBuf,
    words: &'a [OsString],
    watch: Watch,
    family: Family,
    /// The marks of this run and of those that it runs in.
    marks: String,
    /// Tells that children of ours have ended.
    deaths: unix::Signal,
    options: &'a Options,
    quiet: bool,
    /// What the command reads from its stdin; `None`: it has ours.
    fed: Option<Vec<u8>>,
    /// What the store calls us.
    member: String,
    /// The store's URL and the config file, for runs within.
    handed_on: HandedOn,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The command's own code, or the signal's.
    pub(super) code: u8,
    /// It was stopped, as what it ran under was lost, or about to be.
    pub(super) was_stopped: bool,
}

/// A command that runs.
struct Running<'a> {
    process: Process,
    pid: Pid,
    watch: Watch,
    family: Family,
    /// Tells that children of ours have ended: the two above, and orphans.
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
    was_stopped: bool,
    /// A signal that ends others was passed on.
    was_told_to_end: bool,
    /// The loss was told, and not only feared.
    is_lost: bool,
}

/// Where the program is; fails as a shell would if there is none.
fn find(command: &[OsString]) -> Outcome<PathBuf> {
    let Some(program) = command.first() else { return Err(Failure::usage("no command")) };
    let path = Path::new(program);
    let places: Vec<PathBuf> = if path.components().count() > 1 {
        vec![path.to_owned()]
    } else {
        let dirs = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
        env::split_paths(&dirs).map(|dir| dir.join(path)).collect()
    };
    let mut is_there = false;
    for place in places {
        let Ok(file) = place.metadata() else { continue };
        if file.is_file() && file.permissions().mode() & 0o111 != 0 {
            return Ok(place);
        }
        is_there = true;
    }
    let shown = path.display();
    Err(match is_there {
        false => Failure::new(exit::NOT_FOUND, format!("{shown}: command not found")),
        true => Failure::new(exit::NOT_EXECUTABLE, format!("{shown}: not executable")),
    })
}

impl<'a> Prepared<'a> {
    /// Fails as a shell would if there is no such program.
    pub(crate) fn new(words: &'a [OsString], options: &'a Options, quiet: bool) -> Outcome<Self> {
        if !Path::new("/proc/self/stat").exists() {
            let what = "/proc is not there, and without it nothing could watch over the command";
            return Err(Failure::new(exit::SYSTEM, what));
        }
        let program = find(words)?;
        // Before there are children: while it is ignored, as it may be when we are started, the kernel keeps no status of theirs.
        let deaths = signal(SignalKind::child()).map_err(not_started)?;
        let mark = new_mark();
        let marks = family::marks(env::var(MARK).ok(), &mark);
        // Before there is the watch: whoever is a child of ours by now is none of the command's.
        let family = Family::of_us(&mark);
        let watch = Watch::start(mark).map_err(not_started)?;
        let (member, handed_on) = (String::new(), HandedOn::default());
        Ok(Self {
            program,
            words,
            watch,
            family,
            marks,
            deaths,
            options,
            quiet,
            fed: None,
            member,
            handed_on,
        })
    }

    /// The command reads this from its stdin.
    pub(super) fn fed(self, body: Vec<u8>) -> Self {
        Self { fed: Some(body), ..self }
    }

    /// Runs it to its end, and answers what it ran under, unless it did not start.
    pub(super) async fn run_under(
        self,
        hold: Hold,
        signals: &mut Signals,
    ) -> Outcome<(Ended, Option<Hold>)> {
        let mut running = self.start(Some(hold))?;
        let ended = running.supervise(signals, None).await?;
        Ok((ended, running.hold.take()))
    }

    /// Lets runs within find the store, and know what is held around them.
    pub(crate) fn hand_on(&mut self, coordinator: &Coordinator, store: &Store) {
        self.member = coordinator.member_id().to_owned();
        self.handed_on = HandedOn::of(store);
    }

    /// Runs it to its end, and lets go of what it runs under, or before if `release_after` says so.
    pub(crate) async fn run(
        self,
        hold: Option<Hold>,
        claim: Option<Claim>,
        release_after: Option<Duration>,
        signals: &mut Signals,
    ) -> Outcome<u8> {
        let is_ignored = self.options.on_lost == OnLost::Ignore;
        let mut running = match self.start(hold) {
            Ok(running) => running,
            Err(failure) => {
                // It has not run; another may.
                if let Some(claim) = claim {
                    let _ = claim.give_back().await;
                }
                return Err(failure);
            }
        };
        running.claim = claim;
        let release_at = release_after.map(|after| Instant::now() + after);
        let ended = running.supervise(signals, release_at).await;
        let is_done = ended.as_ref().is_ok_and(|ended| ended.code == 0 && !ended.was_stopped);
        if let Some(releasing) = running.releasing.take() {
            let _ = releasing.await;
        }
        // While it is held: who holds it next takes over what is not done.
        let settled = running.settle_claim(is_done).await;
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
        settled.map(|()| ended.code)
    }

    fn start(mut self, hold: Option<Hold>) -> Outcome<Running<'a>> {
        let grace = grace(self.options, hold.as_ref())?;
        // Before the command is there, so that it never outlives its lock.
        if let Some(file) = hold.as_ref().map(|hold| hold.session_file()).transpose()?.flatten() {
            self.watch.keep_open(file);
        }
        let mut command = started::command(&self.program, self.words);
        command.kill_on_drop(true);
        self.handed_on.apply(&mut command);
        command.env(MARK, &self.marks);
        if let Some(hold) = &hold {
            if !hold.is_held() {
                let what = format!("{:?} was lost before the command started", hold.name());
                return Err(Failure::new(exit::LOST, what));
            }
            command.env(HELD, around::with(hold.held_by(&self.member)));
            command.env("LOCK_NAME", hold.name()).env("LOCK_TOKEN", hold.token().to_string());
            match hold.remaining() {
                Some(left) => command.env("LOCK_DEADLINE", unix_time(left)),
                // That of a run that we run in.
                None => command.env_remove("LOCK_DEADLINE"),
            };
        }
        if self.fed.is_some() {
            command.stdin(Stdio::piped());
        }
        if !self.options.foreground {
            command.process_group(0);
        }
        // What the command leaves behind becomes ours, so that its end can be seen: not every first process of a container
        // looks after orphans.
        set_child_subreaper(Some(getpid())).map_err(|error| not_started(error.into()))?;
        // First, so that no command is ever without it.
        self.watch.update(hold.as_ref());
        let mut process = command.spawn().map_err(|error| self.not_spawned(&error))?;
        if let (Some(mut stdin), Some(body)) = (process.stdin.take(), self.fed.take()) {
            // Besides all else: the command may read late, a part of it, or nothing.
            tokio::spawn(async move { drop(stdin.write_all(&body).await) });
        }
        let pid = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| Failure::new(exit::SYSTEM, "the command has no process id"))?;
        self.watch.look_at(match self.options.foreground {
            true => Word::Single(pid),
            false => Word::Group(pid),
        });
        self.family.group = (!self.options.foreground).then_some(pid);
        self.family.command = Some(pid);
        let Self { watch, family, deaths, options, quiet, .. } = self;
        Ok(Running {
            process,
            pid,
            watch,
            family,
            deaths,
            options,
            quiet,
            hold,
            claim: None,
            releasing: None,
            grace,
            kill_at: None,
            was_stopped: false,
            was_told_to_end: false,
            is_lost: false,
        })
    }

    /// As a shell has it.
    fn not_spawned(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::NotFound => exit::NOT_FOUND,
            // No process could be made.
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
            _ => exit::NOT_EXECUTABLE,
        };
        let (text, program) = (error.to_string(), self.words[0].to_string_lossy());
        let why = text.split(" (os error").next().unwrap_or_default();
        Failure::new(code, format!("{program}: {why}"))
    }
}

fn not_started(error: io::Error) -> Failure {
    Failure::system("cannot start the command", &error)
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
                    // Whatever is known of the command: what it has started ends before the lock is free.
                    self.end_family(signals, &status).await;
                    self.watch.look_at(Word::Goodbye);
                    let status = status.map_err(|error| Failure::system("cannot wait for the command", &error))?;
                    return Ok(Ended { code: code_of(status), was_stopped: self.was_stopped });
                }
                number = signals.next() => self.pass_on(number),
                reason = lost(bound), if !self.is_lost => {
                    self.is_lost = true;
                    let grace = self.grace.min(REVOKED_GRACE);
                    self.stop(format_args!("lost {}: {reason}", self.shown()), grace);
                }
                () = at(self.kill_at) => self.kill(),
                never = self.watch.keep() => match never {},
                _ = self.deaths.recv() => self.wait_for_orphans(),
                () = at(release_at) => {
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
        self.hold.as_ref().map(|hold| format!("{:?}", hold.name())).unwrap_or_default()
    }

    /// Begins to end the command, or ends it sooner.
    fn stop(&mut self, why: std::fmt::Arguments<'_>, grace: Duration) {
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
        let children = alive::children(getpid()).unwrap_or_default();
        for child in children.into_iter().filter(|child| !own.contains(&Some(*child))) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }

    fn pass_on(&mut self, number: i32) {
        if number == signals::TSTP && !signals::can_go_on() {
            return;
        }
        // In the terminal's foreground those of its keys, and of its size, have reached the command by themselves.
        if !(self.options.foreground && signals::is_by_terminal(number)) {
            match Signal::from_named_raw(number) {
                Some(signal) => self.signal(signal),
                None => signals::send_unnamed(number, self.pid, self.options.foreground),
            }
            // What ends others is to end it too if it stands still: it may have read a terminal that is not its own.
            if matches!(number, signals::HUP | signals::INT | signals::QUIT | signals::TERM) {
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

fn code_of(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(exit::by_signal);
    let own = status.code().and_then(|code| u8::try_from(code).ok());
    own.or(by_signal).unwrap_or(exit::SYSTEM)
}

async fn lost(hold: Option<&Hold>) -> coordination::LossReason {
    match hold {
        Some(hold) => hold.lost().await,
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
