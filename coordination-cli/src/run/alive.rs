//! Who lives. A process that has ended and that nobody has waited for is there, and does not live.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    test_kill_process_group, waitpgid, waitpid,
};

/// Our first argument in the process that watches; then comes the run's mark.
pub(crate) const WATCH: &str = "__watch";
/// How often, and after what time each, an environment is read that is empty.
const EXEC_TRIES: usize = 4;
const EXEC_STEP: Duration = Duration::from_micros(200);

/// A process that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) place: Place,
    /// In the kernel's ticks: another process of the same number has another one.
    pub(super) started: u64,
    pub(super) name: String,
}

impl Process {
    /// `None`: it does not live.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let stat = stat(Path::new(&path))?;
        let (_, name) = stat.rsplit_once(") ")?.0.split_once('(')?;
        let started = field_of(&stat, STARTED)?.parse().ok()?;
        let lives = is_living(field_of(&stat, STATE)?) || has_living_thread(Path::new(&path));
        let place = Place::of(&stat)?;
        lives.then(|| Self { pid, place, started, name: name.to_owned() })
    }

    /// One of a group that answers, or that may be there, where nothing can be read of it: no signal of ours reaches it.
    pub(super) fn unseen(pid: Pid) -> Self {
        let place = Place { parent: 0, group: pid.as_raw_nonzero().get(), session: 0 };
        Self { pid, place, started: u64::MAX, name: "?".to_owned() }
    }

    pub(super) fn is_unseen(&self) -> bool {
        self.started == u64::MAX
    }

    /// No other process has both, also after numbers have come round.
    pub(super) fn identity(&self) -> (Pid, u64) {
        (self.pid, self.started)
    }

    /// What it was started with; empty if that cannot be read.
    pub(super) fn environment(&self) -> Vec<u8> {
        let path = format!("/proc/{}/environ", self.pid.as_raw_nonzero());
        for _ in 0..EXEC_TRIES {
            match fs::read(&path) {
                // While a program takes the place of another one, there is none.
                Ok(environment) if environment.is_empty() => thread::sleep(EXEC_STEP),
                environment => return environment.unwrap_or_default(),
            }
        }
        Vec::new()
    }

    /// The one that has started it, or has adopted it.
    pub(super) fn parent(&self) -> Option<Self> {
        Pid::from_raw(self.place.parent).and_then(Self::of)
    }

    /// Whether its parent, which is this one, has forked it, and it has started no other program since: as a subshell.
    pub(super) fn is_fork_of(&self, parent: &Self) -> bool {
        let ours = program_place(self.pid);
        ours.is_some() && ours == program_place(parent.pid)
    }

    /// Whether it can be told of it what it is a fork of. Another user's cannot be read, nor a program's that is kept from debuggers.
    pub(super) fn has_known_program(&self) -> bool {
        program_place(self.pid).is_some()
    }

    /// The name of its program's file, whatever it calls itself.
    pub(super) fn program(&self) -> String {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid.as_raw_nonzero()));
        let program = program.unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // The file of one that was replaced has ` (deleted)` after it.
        name.split(' ').next().unwrap_or_default().to_owned()
    }

    pub(super) fn is_alive(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.is_same(self))
    }

    /// Whether it is the same one, whatever it has become.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Whether it watches over another run, within ours: by the words that it was started with, which any user may read.
    fn is_watch(&self) -> bool {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid.as_raw_nonzero()));
        // A program of that name whose mark is no mark would end at once.
        words.is_ok_and(|words| {
            let mut words = words.split(|byte| *byte == 0);
            let is_ours =
                words.next() == Some(b"coordination") && words.next() == Some(WATCH.as_bytes());
            let is_of_mark = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
            is_ours
                && words.next().is_some_and(|mark| !mark.is_empty() && mark.iter().all(is_of_mark))
        })
    }

    /// Sends it a signal, and nobody else who has its number by now.
    ///
    /// The watch of a run within gets none: it has that run's lock until the command of that run is dead, and ends by itself then.
    pub(super) fn signal(&self, signal: Signal) {
        if self.is_watch() {
            return;
        }
        let sent = pidfd_open(self.pid, PidfdFlags::empty()).ok().filter(|_| self.is_alive());
        // An error would be that it has ended, or is another user's.
        let _ = match sent {
            Some(file) => pidfd_send_signal(file, signal),
            // The kernel has no such files, or no descriptor is left for one, or for a look beside it.
            None if self.is_alive() => kill_process(self.pid, signal),
            None => Ok(()),
        };
    }
}

/// All that live, but for those that were seen before.
pub(super) fn processes(seen: &mut HashSet<Pid>) -> Vec<Process> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = names.filter_map(|name| name.file_name().to_str()?.parse().ok());
    // The directory is closed then: a process that has one descriptor left can look as well.
    let ids: Vec<i32> = ids.collect();
    ids.into_iter()
        .filter_map(Pid::from_raw)
        .filter(|id| seen.insert(*id))
        .filter_map(Process::of)
        .collect()
}

/// Where a process stands among others, by its numbers in `/proc`: 0 is what is outside of our pid namespace, where a
/// system call's wrapper would take it for a process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
}

impl Place {
    pub(crate) fn of_us() -> Option<Self> {
        Self::read(Path::new("/proc/self"))
    }

    /// That of who started this process, or has adopted it.
    pub(super) fn of_parent(self) -> Option<Self> {
        // Nobody has the number 0.
        Self::read(&Path::new("/proc").join(self.parent.to_string()))
    }

    pub(super) fn of_process(process: Pid) -> Option<Self> {
        Self::read(&Path::new("/proc").join(process.as_raw_nonzero().to_string()))
    }

    fn read(process: &Path) -> Option<Self> {
        Self::of(&stat(process)?)
    }

    fn of(stat: &str) -> Option<Self> {
        let number = |place| field_of(stat, place)?.parse().ok();
        Some(Self { parent: number(PARENT)?, group: number(GROUP)?, session: number(SESSION)? })
    }
}

/// This process's children, those of each of its threads, the dead that nobody has waited for with them.
///
/// # Errors
///
/// They cannot be read: no descriptor is left, or the kernel has no such lists.
pub(super) fn children(process: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in paths_in(&threads_of(process))? {
        match fs::read_to_string(thread.join(CHILDREN)) {
            Ok(list) => children.extend(list.split(' ').filter_map(|id| id.parse::<i32>().ok())),
            // That thread has ended; its children went to the first one, which is read, or was, before it could end.
            Err(error) if error.kind() == io::ErrorKind::NotFound && has_children_listed() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(children.into_iter().filter_map(Pid::from_raw).collect())
}

/// The same of a process that may have ended: then it has none.
pub(super) fn children_if_there(process: Pid) -> io::Result<Vec<Pid>> {
    match children(process) {
        Err(_) if !is_shown(process) && has_children_listed() => Ok(Vec::new()),
        children => children,
    }
}

/// When this process began, in the kernel's ticks, also of one that has ended and that nobody has waited for.
pub(super) fn started(process: Pid) -> Option<u64> {
    let path = format!("/proc/{}", process.as_raw_nonzero());
    field_of(&stat(Path::new(&path))?, STARTED)?.parse().ok()
}

/// Where its program's stack, words and environment lie: at places of its own for each start of a program. `None`: another user's are not
/// shown to us.
fn program_place(process: Pid) -> Option<[String; 3]> {
    let stat = stat(Path::new(&format!("/proc/{}", process.as_raw_nonzero())))?;
    let place = |place| field_of(&stat, place).filter(|at| *at != "0").map(str::to_owned);
    Some([place(STACK)?, place(WORDS)?, place(ENVIRONMENT)?])
}

/// Whether this number is, for all that can be read, of the process that began then; `None`: nobody knows when that was.
pub(super) fn is_still(process: Pid, began: Option<u64>) -> bool {
    began.is_none() || started(process).is_none_or(|started| Some(started) == began)
}

/// Whether anything can be read of it: not of who is not there, and of other users' processes not where these are hidden.
pub(super) fn is_shown(process: Pid) -> bool {
    Path::new(&format!("/proc/{}/stat", process.as_raw_nonzero())).exists()
}

/// Whether [`children`] can be relied on: not every kernel lists them.
pub(super) fn has_children_listed() -> bool {
    let us = getpid();
    threads_of(us).join(us.as_raw_nonzero().to_string()).join(CHILDREN).exists()
}

/// All at once, so that no descriptor of the directory is open any more when the first is read: one may be all that is left.
fn paths_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn threads_of(process: Pid) -> PathBuf {
    format!("/proc/{}/task", process.as_raw_nonzero()).into()
}

/// The file of a thread that lists the children that it has started. Orphans come to the first thread.
const CHILDREN: &str = "children";

/// Waits for those children of ours that have ended, but for these, whom somebody else waits for.
pub(super) fn wait_for_children(but: impl Fn(Pid) -> bool) {
    for child in children(getpid()).unwrap_or_default().into_iter().filter(|child| !but(*child)) {
        let _ = waitpid(Some(child), WaitOptions::NOHANG);
    }
}

/// Whether the group has a process that has not been waited for; those of ours that have ended are waited for.
pub(super) fn is_group_there(group: Pid) -> bool {
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
    // Another user's lives, and does not obey us.
    matches!(test_kill_process_group(group), Ok(()) | Err(Errno::PERM))
}

/// Places in `stat`, after the name.
const STATE: usize = 0;
const PARENT: usize = 1;
const GROUP: usize = 2;
const SESSION: usize = 3;
const STARTED: usize = 19;
const STACK: usize = 25;
const WORDS: usize = 45;
const ENVIRONMENT: usize = 47;
/// Longer than all that we read of it.
const LONGEST_STAT: usize = 1024;

/// How a process or a thread stands. The name within is whatever it says, and need not be text.
fn stat(of: &Path) -> Option<String> {
    // At once: as such a file does not say how long it is, a buffer that grows takes six reads, and this is read of all processes.
    let mut text = [0; LONGEST_STAT];
    let length = fs::File::open(of.join("stat")).ok()?.read(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Its first thread may have ended before the others.
fn has_living_thread(process: &Path) -> bool {
    let threads = paths_in(&process.join("task")).unwrap_or_default();
    threads
        .iter()
        .filter_map(|thread| stat(thread))
        .any(|stat| field_of(&stat, STATE).is_some_and(is_living))
}

fn is_living(state: &str) -> bool {
    !matches!(state, "Z" | "X")
}

fn field_of(stat: &str, place: usize) -> Option<&str> {
    // The name may have blanks and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(place)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_subshell_is_a_fork_of_its_shell_and_what_it_starts_is_not() {
        // It reads a line that does not come.
        let words = "(echo $(exec sh -c 'echo $PPID'); read line; true); true";
        let mut shell = Command::new("sh");
        shell.args(["-c", words]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let mut said = String::new();
        let stdout = shell.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut said).expect("text");
        let process = |pid| Process::of(pid).expect("it lives");
        let (us, of_shell) = (process(getpid()), process(Pid::from_child(&shell)));
        assert!(!of_shell.is_fork_of(&us));
        let pid = said.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
        let subshell = process(pid);
        assert!(subshell.parent().is_some_and(|parent| parent.is_same(&of_shell)));
        assert!(subshell.is_fork_of(&of_shell));
        // Its stdin is closed then.
        shell.wait().expect("ours");
    }

    #[test]
    fn the_dead_do_not_live() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().expect("sleep");
        let pid = Pid::from_child(&child);
        let process = Process::of(pid).expect("it lives");
        assert_eq!(process.place.group, pid.as_raw_nonzero().get());
        assert!(processes(&mut HashSet::new()).contains(&process) && is_group_there(pid));
        process.signal(Signal::KILL);
        // Nobody has waited for it yet.
        while process.is_alive() || Process::of(pid).is_some() {
            std::thread::yield_now();
        }
        assert!(children(getpid()).expect("listed").contains(&pid));
        child.wait().expect("ours");
        assert!(!process.is_alive() && !is_group_there(pid));
    }
}
