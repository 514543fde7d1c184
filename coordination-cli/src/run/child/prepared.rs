//! A command that can be started: found, with its watch ready, and started when what it is to run under is held.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::{Claim, Coordinator, Effect, Error, FencingToken, LossReason};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::Instant;

use super::{Ended, FIRST_LOOK, Running, Terminal, is_loss};
use crate::args::{Child as Options, OnLost, Store};
use crate::exit::{self, Failure, Outcome, say};
use crate::run::alive;
use crate::run::around::{self, HELD};
use crate::run::family::{self, Family, MARK};
use crate::run::former::{is_within_reach, tell_end};
use crate::run::signals::Signals;
use crate::run::started;
use crate::run::wanted::Hold;
use crate::run::watch::{Watch, Word, new_mark};
use crate::settings::HandedOn;

/// From SIGTERM to SIGKILL, without a lease.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// Whoever asks for more asks for longer than any command runs, and maybe than the clock can show.
const LONGEST_GRACE: Duration = Duration::from_secs(366 * 86_400);
pub(crate) const SHELL: &str = "/bin/sh";

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
    /// Our session; `None`: not yet.
    coordinator: Option<Coordinator>,
    /// The store's URL and the config file, for runs within.
    handed_on: HandedOn,
}

/// Where the program is; fails as a shell would if there is none.
pub(crate) fn find(command: &[OsString]) -> Outcome<PathBuf> {
    let Some(program) = command.first() else { return Err(Failure::usage("no command")) };
    let path = Path::new(program);
    if program.is_empty() {
        return Err(Failure::new(exit::NOT_FOUND, "the command has no name"));
    }
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
        let (coordinator, handed_on) = (None, HandedOn::default());
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
            coordinator,
            handed_on,
        })
    }

    /// The command reads this from its stdin.
    pub(crate) fn fed(self, body: Vec<u8>) -> Self {
        Self { fed: Some(body), ..self }
    }

    /// Runs it to its end, and answers what it ran under, unless it did not start.
    pub(crate) async fn run_under(
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
        self.coordinator = Some(coordinator.clone());
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
        let coordinator = self.coordinator.clone();
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
        // Later than the clock can show is never.
        let release_at = release_after.and_then(|after| Instant::now().checked_add(after));
        let ended = running.supervise(signals, release_at).await;
        let was_held = running.hold.as_ref().is_some_and(Hold::is_held);
        let had_ended_in_time = running.had_ended_in_time;
        let is_done = ended.as_ref().is_ok_and(|ended| ended.code == 0 && !ended.was_stopped);
        if let Some(releasing) = running.releasing.take() {
            let _ = releasing.await;
        }
        // While it is held: who holds it next takes over what is not done.
        let settled = running.settle_claim(is_done).await;
        let was_lost = match running.hold.take() {
            Some(hold) => {
                let of = ended.as_ref().ok().filter(|_| !running.goes_on);
                let was_good = was_held || had_ended_in_time;
                let released = let_go(hold, of.zip(coordinator.as_ref())).await;
                released.is_err_and(|error| is_loss_before(&error, was_good))
            }
            None => false,
        };
        let ended = ended?;
        if (ended.was_stopped || was_lost) && !is_ignored {
            if was_lost && !ended.was_stopped {
                say(format_args!("the lock was lost while the command ran"));
            }
            return Ok(exit::LOST);
        }
        settled.and_then(|()| ended.outcome())
    }

    /// While there is no command: waits for what commands before have left to us, and for whatever comes to the first process
    /// of a container. Never ends, and can be dropped at any time.
    pub(crate) async fn reap(&mut self) -> Infallible {
        while self.deaths.recv().await.is_some() {
            alive::wait_for_children(|child| Some(child) == self.watch.pid());
        }
        pending().await
    }

    fn start(mut self, hold: Option<Hold>) -> Outcome<Running<'a>> {
        let left = hold.as_ref().and_then(Hold::remaining);
        let grace = grace(self.options.kill_after, left);
        // Before the command is there, so that it never outlives its lock.
        if let Some(file) = hold.as_ref().map(|hold| hold.session_file()).transpose()?.flatten() {
            self.watch.keep_open(file);
        }
        if let Some(hold) = hold.as_ref().filter(|hold| !hold.is_held()) {
            let what = format!("{} was lost before the command started", hold.shown());
            return Err(Failure::new(exit::LOST, what));
        }
        // What the command leaves behind becomes ours, so that its end can be seen: not every first process of a container
        // looks after orphans.
        set_child_subreaper(Some(getpid())).map_err(|error| not_started(error.into()))?;
        // First, so that no command is ever without it.
        self.watch.update(hold.as_ref());
        let mut process =
            self.spawn(hold.as_ref()).map_err(|error| not_begun(&self.words[0], &error))?;
        let is_fed = self.fed.is_some();
        if let (Some(mut stdin), Some(body)) = (process.stdin.take(), self.fed.take()) {
            // Besides all else: the command may read late, a part of it, or nothing.
            tokio::spawn(async move { drop(stdin.write_all(&body).await) });
        }
        let pid = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| Failure::new(exit::SYSTEM, "the command has no process id"))?;
        let terminal = if self.options.foreground { None } else { Terminal::of(pid, is_fed) };
        let began = alive::started(pid).unwrap_or_default();
        self.watch.look_at(match self.options.foreground {
            true => Word::Single(pid, began),
            false => Word::Group(pid, began),
        });
        self.family.group = (!self.options.foreground).then_some(pid);
        self.family.command = Some(pid);
        let Self { watch, family, deaths, options, quiet, .. } = self;
        Ok(Running {
            process,
            pid,
            watch,
            family,
            terminal,
            deaths,
            options,
            quiet,
            hold,
            claim: None,
            releasing: None,
            grace,
            kill_at: None,
            next_look: Instant::now() + FIRST_LOOK,
            looked_after: FIRST_LOOK,
            was_stopped: false,
            had_ended_in_time: false,
            was_told_to_end: false,
            is_lost: false,
            goes_on: false,
        })
    }

    fn spawn(&self, hold: Option<&Hold>) -> io::Result<Child> {
        match self.command(&self.program, self.words, hold).spawn() {
            Err(error) if is_for_shell(&error) => {
                let words = by_shell(&self.program, self.words);
                self.command(Path::new(SHELL), &words, hold).spawn()
            }
            spawned => spawned,
        }
    }

    /// With all that it is told in its environment.
    fn command(&self, program: &Path, words: &[OsString], hold: Option<&Hold>) -> Command {
        let mut command = started::command(program, words);
        command.kill_on_drop(true);
        self.handed_on.apply(&mut command);
        command.env(MARK, &self.marks);
        if let Some(hold) = hold {
            let member = self.coordinator.as_ref().map(Coordinator::member_id);
            tell(&mut command, hold, member.unwrap_or_default());
        }
        if self.fed.is_some() {
            command.stdin(Stdio::piped());
        }
        if !self.options.foreground {
            command.process_group(0);
        }
        command
    }
}

/// Releases it, and tells those who follow that they need not wait for its command: unless something of the command may go on, which is
/// `None`.
async fn let_go(mut hold: Hold, ended: Option<(&Ended, &Coordinator)>) -> Result<(), Error> {
    let Some((ended, coordinator)) = ended else { return hold.release().await };
    let (granted, was_held) = (hold.granted(), hold.is_held());
    // What is lost, or about to be, as the store is out of reach, is not worth a wait of our own: those who follow wait then.
    if was_held && !ended.was_stopped || is_within_reach(coordinator).await {
        hold.command_has_ended().await;
    }
    let released = hold.release().await;
    if !was_held || released.as_ref().is_err_and(is_loss) {
        tell_end(coordinator, &granted).await;
    }
    released
}

/// Says in the command's environment what it runs under, and as whom.
pub(crate) fn tell(command: &mut Command, hold: &Hold, member: &str) {
    command.env(HELD, around::with(hold.held_by(member)));
    name_each(command, &hold.each());
    match hold.remaining() {
        Some(left) => command.env("LOCK_DEADLINE", unix_time(left)),
        // That of a run that we run in.
        None => command.env_remove("LOCK_DEADLINE"),
    };
}

/// Whether it is a script without a first line that says who reads it: the shell does, as for flock(1) and for cron.
pub(crate) fn is_for_shell(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error())
}

/// The words by which [`SHELL`] reads it.
pub(crate) fn by_shell(script: &Path, words: &[OsString]) -> Vec<OsString> {
    let mut by_shell = vec![OsString::from("sh"), script.into()];
    by_shell.extend_from_slice(&words[1..]);
    by_shell
}

/// Why this command could not begin, as a shell has it.
pub(crate) fn not_begun(command: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        // No process could be made.
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
        _ => exit::NOT_EXECUTABLE,
    };
    let (text, command) = (error.to_string(), command.to_string_lossy());
    let why = text.split(" (os error").next().unwrap_or_default();
    Failure::new(code, format!("{command}: {why}"))
}

/// Names what is held, with its token: what was asked for first, and if that is more than one, each of them by its number.
fn name_each(command: &mut Command, each: &[(&str, FencingToken)]) {
    // Those of a run that we run in may be more.
    for (name, _) in env::vars_os().filter(|(name, _)| is_numbered(name)) {
        command.env_remove(name);
    }
    for (number, (name, token)) in each.iter().enumerate() {
        if number == 0 {
            command.env("LOCK_NAME", name).env("LOCK_TOKEN", token.to_string());
        }
        if each.len() > 1 {
            let number = number + 1;
            command.env(format!("LOCK_NAME_{number}"), name);
            command.env(format!("LOCK_TOKEN_{number}"), token.to_string());
        }
    }
}

fn is_numbered(variable: &OsStr) -> bool {
    let number = variable.to_str().and_then(|name| {
        name.strip_prefix("LOCK_NAME_").or_else(|| name.strip_prefix("LOCK_TOKEN_"))
    });
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Whether the release says that the lock was lost before the command had ended, and not since: it may be lost while the store is
/// told of a period that is spent, or of the release itself.
pub(crate) fn is_loss_before(error: &Error, was_held: bool) -> bool {
    let is_since = was_held && error.loss_reason() == Some(LossReason::DeadlinePassed);
    is_loss(error) && error.effect() != Effect::Unknown && !is_since
}

fn not_started(error: io::Error) -> Failure {
    Failure::system("cannot start the command", &error)
}

/// Refuses a time from SIGTERM to SIGKILL that is too long for the lease which is asked for; `None`: for none.
pub(crate) fn check_grace(options: &Options, lease: Option<Duration>) -> Outcome {
    match (options.kill_after, lease) {
        (Some(wanted), Some(lease)) if wanted > lease / 3 => Err(Failure::usage(format!(
            "--kill-after is {wanted:?}, and the lease leaves {:?} at most: take a longer lease, as in `?ttl=1m`",
            lease / 3
        ))),
        _ => Ok(()),
    }
}

/// From SIGTERM to SIGKILL, where so much is left of the lease when the command starts: less than the lease, and by how much is
/// a matter of chance.
fn grace(wanted: Option<Duration>, left: Option<Duration>) -> Duration {
    match (wanted, left) {
        (Some(wanted), Some(left)) => wanted.min(left / 3),
        (None, Some(left)) => left / 5,
        (wanted, None) => wanted.unwrap_or(DEFAULT_GRACE).min(LONGEST_GRACE),
    }
}

fn unix_time(left: Duration) -> String {
    let deadline = SystemTime::now() + left;
    let since = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}", since.as_secs(), since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_grace_ends_later_than_the_clock_can_show() {
        let second = Duration::from_secs(1);
        assert_eq!(grace(Some(second), None), second);
        assert_eq!(grace(Some(Duration::MAX), Some(3 * second)), second);
        let longest = grace(Some(Duration::MAX), None);
        assert!(Instant::now().checked_add(longest + second).is_some());
    }
}
