//! What a command has started: all that descends from it, in whatever process group or session.
//!
//! A signal to the command's process group misses a descendant that has left the group, and many have: what `timeout` in a
//! script has started, a job under a shell's `set -m`, what Python starts with `start_new_session`, what sudo starts.
//!
//! While the wrapper lives, nothing that the command has started leaves the wrapper's descendants: the wrapper is a *subreaper*,
//! so that an orphan becomes the wrapper's own child. When the wrapper was killed, orphans go elsewhere. Then the watch goes by
//! the command's process group, by the run's mark in a process's environment, and by descent from a process that has one
//! of the two. So out of its reach is only a process that has left the group, has no environment of the command, and has lost its
//! parent, all three.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, getpid, getppid};

use super::alive::{self, Process};
use crate::exit::printable;

/// The variable in the command's environment that says of which runs it is, the outermost first, with colons between them.
pub(crate) const MARK: &str = "COORDINATION_RUN";
/// What a process has there that is to go on when the command has ended.
const LEAVE: &[u8] = b"leave";

/// Those that end with a command.
pub(super) struct Family {
    mark: Vec<u8>,
    /// As long as the wrapper lives, the command and the orphans among its descendants are the wrapper's children. `None`: it
    /// had ended when we began.
    wrapper: Option<Pid>,
    /// When the wrapper began, in the kernel's ticks: no process of the command's is older.
    since: u64,
    /// Children that the wrapper had when it began, and since when each lives: whoever became the wrapper has left them to it.
    strangers: HashMap<Pid, Option<u64>>,
    /// The wrapper may be given orphans of strangers: of those, and, as the first process of a pid namespace, of whoever enters that.
    has_strangers: bool,
    /// Where it may: what was found to be the command's when last looked at, and is so without its parent, too.
    noted: HashSet<(Pid, u64)>,
    /// The command's process group, if it has one of its own.
    pub(super) group: Option<Pid>,
    /// The command itself.
    pub(super) command: Option<Pid>,
}

impl Family {
    /// That of our own command, which does not run yet.
    pub(super) fn of_us(mark: &str) -> Self {
        Self::of(mark.as_bytes(), Some(getpid()))
    }

    /// The same for the process that watches.
    pub(super) fn of_parent(mark: &OsStr) -> Self {
        // The mark begins with the wrapper's number. If another process is our parent by now, its children are none of ours.
        let wrapper = getppid().filter(|parent| {
            let number = format!("{}-", parent.as_raw_nonzero());
            mark.as_bytes().starts_with(number.as_bytes())
        });
        Self::of(mark.as_bytes(), wrapper)
    }

    fn of(mark: &[u8], wrapper: Option<Pid>) -> Self {
        let children =
            wrapper.into_iter().flat_map(|wrapper| alive::children(wrapper).unwrap_or_default());
        let others = children.filter(|child| *child != getpid());
        let strangers: HashMap<_, _> = others.map(|child| (child, alive::started(child))).collect();
        Self {
            mark: mark.to_owned(),
            wrapper,
            since: wrapper.and_then(Process::of).map_or(0, |wrapper| wrapper.started),
            has_strangers: !strangers.is_empty() || wrapper.is_some_and(Pid::is_init),
            strangers,
            noted: HashSet::new(),
            group: None,
            command: None,
        }
    }

    /// It has ended.
    pub(super) fn forget_wrapper(&mut self) {
        self.wrapper = None;
    }

    /// Whether our wrapper lives: the orphans of the command are its children then.
    pub(super) fn has_wrapper(&self) -> bool {
        self.wrapper.is_some_and(|wrapper| wrapper == getpid() || getppid() == Some(wrapper))
    }

    /// Once nobody is in its group, whoever has that number is none of it.
    pub(super) fn forget_empty_group(&mut self) {
        self.group = self.group.filter(|group| alive::is_group_there(*group));
    }

    /// Whether this child of the wrapper is one that it had when it began, and no later one of that number.
    fn is_stranger(&self, child: Pid) -> bool {
        self.strangers.get(&child).is_some_and(|began| alive::is_still(child, *began))
    }

    /// Whether it can be told without looking at all processes that nothing lives but the watch.
    pub(super) fn is_gone(&self, watch: Option<Pid>) -> bool {
        let known = |child: &Pid| Some(*child) == watch || self.is_stranger(*child);
        self.group.is_none_or(|group| !alive::is_group_there(group))
            && alive::children(getpid()).is_ok_and(|children| children.iter().all(known))
    }

    /// Those that live, and are to end with the command; something [unseen](Process::unseen), if it cannot be told that there are
    /// none: where no descriptor is left, and where other users' processes are not shown.
    pub(super) fn living(&mut self, watch: Option<Pid>) -> Vec<Process> {
        let living = match self.descendants(watch) {
            Ok(living) if !self.has_others(&living) => living,
            _ => self.searched(watch),
        };
        if self.has_strangers {
            self.noted = living.iter().map(Process::identity).collect();
        }
        living
    }

    /// Our children that the command has left to us. Where there are strangers, all that is the command's is noted with them.
    pub(super) fn orphans(&mut self, watch: Option<Pid>) -> Vec<Process> {
        let mut children = match self.has_strangers {
            true => self.living(watch),
            false => self.own_children(&mut HashSet::from_iter(watch)).unwrap_or_default(),
        };
        let is_ours = |process: &Process| {
            process.place.parent == getpid().as_raw_nonzero().get() && !process.is_unseen()
        };
        children.retain(|process| is_ours(process) && Some(process.pid) != self.command);
        children
    }

    /// By the kernel's lists of children, beginning with our own.
    ///
    /// # Errors
    ///
    /// There are no such lists, or no descriptor to read them by.
    fn descendants(&self, watch: Option<Pid>) -> io::Result<Vec<Process>> {
        let (mut seen, mut found) = (HashSet::from_iter(watch), Vec::new());
        loop {
            // Again and again, as orphans become our children while we look.
            let mut next = self.own_children(&mut seen)?;
            if next.is_empty() {
                return Ok(found);
            }
            while !next.is_empty() {
                let mut children = Vec::new();
                for process in &next {
                    children.extend(alive::children_if_there(process.pid)?);
                }
                found.append(&mut next);
                let new = children.into_iter().filter(|child| seen.insert(*child));
                next = new.filter_map(Process::of).filter(ends).collect();
            }
        }
    }

    /// Our children that are the command's and were not seen: the command itself, and what was orphaned.
    fn own_children(&self, seen: &mut HashSet<Pid>) -> io::Result<Vec<Process>> {
        let children = alive::children(getpid())?;
        let new = children.into_iter().filter(|child| seen.insert(*child));
        let new = new.filter(|child| !self.is_stranger(*child));
        // What is in the list and cannot be read is another user's, where these are not shown.
        let read = |child| match Process::of(child) {
            None if !alive::is_shown(child) => Some(Process::unseen(child)),
            process => process,
        };
        let is_ours = |process: &Process| process.is_unseen() || self.is_adopted(process);
        Ok(new.filter_map(read).filter(is_ours).filter(ends).collect())
    }

    /// Whether somebody is in the command's group who does not descend from us.
    fn has_others(&self, living: &[Process]) -> bool {
        // The question waits for the dead of the group: not before somebody has waited for the command.
        let group = self.group.filter(|_| self.command.is_none());
        let is_of = |group: Pid| {
            move |process: &Process| process.place.group == group.as_raw_nonzero().get()
        };
        group.is_some_and(|group| !living.iter().any(is_of(group)) && alive::is_group_there(group))
    }

    /// By a look at all processes.
    fn searched(&self, watch: Option<Pid>) -> Vec<Process> {
        let all = alive::processes(&mut HashSet::new());
        let can_look = all.iter().any(|process| process.pid == getpid());
        let mut living = self.among(all, watch, self.has_wrapper(), HashSet::new());
        if living.is_empty() {
            // The question waits for the dead of the group: not before somebody has waited for the command.
            let is_waited_for = self.command.is_none();
            let group = self.group.filter(|group| is_waited_for && alive::is_group_there(*group));
            let unseen = group.or_else(|| (!can_look).then(getpid));
            living.extend(unseen.map(Process::unseen));
        }
        living
    }

    /// Those who have come since that was asked with `seen`, when these were known.
    pub(super) fn newcomers(&self, seen: &mut HashSet<Pid>, known: &[Process]) -> Vec<Process> {
        let parents = known.iter().map(|process| process.pid.as_raw_nonzero().get()).collect();
        self.among(alive::processes(seen), None, self.has_wrapper(), parents)
    }

    /// Those among all who have these parents, or are the first, and their descendants.
    fn among(
        &self,
        all: Vec<Process>,
        watch: Option<Pid>,
        wrapper_lives: bool,
        mut parents: HashSet<i32>,
    ) -> Vec<Process> {
        let is_first = |process: &Process| {
            self.group.is_some_and(|group| process.place.group == group.as_raw_nonzero().get())
                || self.command == Some(process.pid)
                || (wrapper_lives && self.is_adopted(process))
                || (!wrapper_lives
                    && process.started >= self.since
                    && has_mark(process, &self.mark))
        };
        let (mut found, mut rest, mut is_beginning) = (Vec::new(), all, true);
        rest.retain(|process| ![watch, self.wrapper, Some(getpid())].contains(&Some(process.pid)));
        // One generation after the other; those that are to stay, and what they have started, are left out.
        loop {
            let is_next = |process: &mut Process| {
                parents.contains(&process.place.parent) || (is_beginning && is_first(process))
            };
            let next: Vec<_> = rest.extract_if(.., is_next).filter(ends).collect();
            if next.is_empty() {
                return found;
            }
            is_beginning = false;
            parents = next.iter().map(|process| process.pid.as_raw_nonzero().get()).collect();
            found.extend(next);
        }
    }

    /// The command, or another child of the wrapper that is not a stranger. Where there are strangers, one of the wrapper's
    /// orphans may be theirs.
    fn is_adopted(&self, process: &Process) -> bool {
        self.wrapper.is_some_and(|wrapper| process.place.parent == wrapper.as_raw_nonzero().get())
            && !self.is_stranger(process.pid)
            && (!self.has_strangers
                || self.command == Some(process.pid)
                || self.noted.contains(&process.identity())
                || has_mark(process, &self.mark))
    }
}

/// The children of these that are not known, and end with the command.
pub(super) fn children(parents: &[Process], known: &[Process]) -> Vec<Process> {
    let children = parents.iter().flat_map(|parent| {
        let children = alive::children_if_there(parent.pid).unwrap_or_default();
        children.into_iter().filter_map(Process::of)
    });
    let is_new = |process: &Process| !known.iter().any(|known| known.is_same(process));
    children.filter(is_new).filter(ends).collect()
}

/// Whether it ends with the command: what is to stay says so.
fn ends(process: &Process) -> bool {
    !has_mark(process, LEAVE)
}

/// The marks of a run with this one, which runs in those that our own environment names.
pub(super) fn marks(outer: Option<String>, own: &str) -> String {
    let outer = outer.unwrap_or_default();
    let outer = outer.split(':').filter(|mark| !mark.is_empty() && mark.as_bytes() != LEAVE);
    outer.chain([own]).collect::<Vec<_>>().join(":")
}

/// Whether this is among the marks of a process. Another user's environment cannot be read.
fn has_mark(process: &Process, mark: &[u8]) -> bool {
    let environment = process.environment();
    let mut entries = environment.split(|byte| *byte == 0);
    let marks = entries.find_map(|entry| entry.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
    marks.is_some_and(|marks| marks.split(|byte| *byte == b':').any(|one| one == mark))
}

/// Names for people: `123 (sleep), 124 (sh) and 3 more`.
pub(super) fn named(processes: &[Process]) -> String {
    const SHOWN: usize = 3;
    let name = |process: &Process| {
        format!("{} ({})", process.pid.as_raw_nonzero(), printable(&process.name))
    };
    let names: Vec<_> = processes.iter().take(SHOWN).map(name).collect();
    match processes.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    /// How long a test waits at most for something that has to happen.
    const SOON: Duration = Duration::from_secs(30);

    fn sleep(mark: Option<&str>) -> Child {
        let mut command = Command::new("sleep");
        command.arg("600").env_remove(MARK);
        if let Some(mark) = mark {
            command.env(MARK, mark);
        }
        command.spawn().expect("sleep")
    }

    /// Of a wrapper that has ended.
    pub(in super::super) fn orphaned(mark: &str) -> Family {
        Family::of(mark.as_bytes(), None)
    }

    #[test]
    fn marks_are_compared_whole() {
        let cases = [
            (Some("1-23"), true),
            (Some("0-1:1-23:7-8"), true),
            (Some("1-234"), false),
            (Some("leave"), false),
            (None, false),
        ];
        for (marks, expected) in cases {
            let mut child = sleep(marks);
            let process = Process::of(Pid::from_child(&child)).expect("it lives");
            // It becomes `sleep`, with its own environment. On a busy machine that may take longer than we look.
            let begun = Instant::now();
            while process.environment().is_empty() && begun.elapsed() < SOON {}
            let has = has_mark(&process, b"1-23");
            child.kill().and_then(|()| child.wait()).expect("ours");
            assert_eq!(has, expected, "{marks:?}");
        }
    }

    #[test]
    fn a_run_has_the_marks_of_those_around_it() {
        for (outer, expected) in [
            (None, "3-4"),
            (Some(""), "3-4"),
            (Some("leave"), "3-4"),
            (Some("1-2"), "1-2:3-4"),
            (Some("0-1:1-2"), "0-1:1-2:3-4"),
        ] {
            assert_eq!(marks(outer.map(str::to_owned), "3-4"), expected);
        }
    }

    #[test]
    fn lists_of_children_and_all_of_proc_tell_the_same() {
        let mut shell = Command::new("sh");
        let words = "sleep 600 & COORDINATION_RUN=leave sleep 3 & setsid sleep 600 & wait";
        let mut shell = shell.args(["-c", words]).env(MARK, "7-77").spawn().expect("sh");
        // Other checks have children as well, which have no such mark.
        let mut family = Family { has_strangers: true, ..Family::of(b"7-77", Some(getpid())) };
        family.strangers.clear();
        let pids = |mut found: Vec<Process>| {
            found.sort_unstable_by_key(|process| process.pid.as_raw_nonzero());
            found.into_iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        let start = std::time::Instant::now();
        let listed = loop {
            let listed = family.descendants(None).expect("this kernel has them");
            // The shell, and two of what it has started, once they are no shells any more; the last of them is one that begins a session.
            // Before that one is there, the one in between may be, which has no environment for a moment.
            if listed.iter().filter(|process| process.name == "sleep").count() == 2
                && listed
                    .iter()
                    .any(|process| process.place.session == process.pid.as_raw_nonzero().get())
                && listed.len() == 3
            {
                break listed;
            }
            assert!(start.elapsed().as_secs() < 30, "{listed:?}");
        };
        let searched = family.searched(None);
        listed.iter().for_each(|process| process.signal(rustix::process::Signal::KILL));
        let _ = shell.wait();
        assert_eq!(pids(listed), pids(searched));
    }

    /// A child that has the number of one which is gone since is ours.
    #[test]
    fn a_stranger_is_known_by_when_it_began() {
        let mut child = sleep(None);
        let pid = Pid::from_child(&child);
        let mut family = Family::of(b"8-88", Some(getpid()));
        assert!(family.is_stranger(pid), "it was there before");
        let began = alive::started(pid).expect("it lives");
        for (stranger, expected) in [(Some(began), true), (None, true), (Some(began - 1), false)] {
            family.strangers.insert(pid, stranger);
            assert_eq!(family.is_stranger(pid), expected);
        }
        child.kill().and_then(|()| child.wait()).expect("ours");
    }

    #[test]
    fn generations_are_found_but_not_those_that_stay() {
        let number = |pid| Pid::from_raw(pid).expect("not zero");
        let process = |pid, parent, group| Process {
            pid: number(pid),
            place: alive::Place { parent, group, session: 1 },
            started: 0,
            name: String::new(),
        };
        // No such processes are there, so that none has a mark.
        let (base, wrapper) = (2_000_000_000, 2_000_000_001);
        let family = Family {
            mark: b"1-23".to_vec(),
            wrapper: Some(number(wrapper)),
            since: 0,
            strangers: HashMap::from([(number(base + 9), Some(0))]),
            has_strangers: true,
            noted: HashSet::new(),
            group: Some(number(base + 2)),
            command: None,
        };
        let all = || {
            vec![
                process(base + 6, base + 5, base + 6),
                process(wrapper, base, base),
                process(base + 2, wrapper, base + 2),
                process(base + 5, base + 3, base + 5),
                process(base + 3, base + 2, base + 2),
                process(base + 9, wrapper, base),
                process(base + 10, base + 9, base),
            ]
        };
        let mut found: Vec<_> = family
            .among(all(), None, true, HashSet::new())
            .iter()
            .map(|process| process.pid.as_raw_nonzero().get() - base)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [2, 3, 5, 6]);
        assert!(!named(&family.among(all(), None, true, HashSet::new())).is_empty());
    }
}
