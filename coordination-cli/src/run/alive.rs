//! Who lives. A process that has ended and that nobody has waited for is there, and does not live.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

/// Whether a process of this group lives.
pub(super) fn has_living(group: Pid) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| Some((field(&process.path(), GROUP)?, process))).any(
        |(its, process)| {
            its == group.as_raw_nonzero().to_string() && has_living_thread(&process.path())
        },
    )
}

/// Whether this process lives.
pub(super) fn is_alive(process: Pid) -> bool {
    has_living_thread(&Path::new("/proc").join(process.as_raw_nonzero().to_string()))
}

/// Where a process stands among others, by its numbers in `/proc`: 0 is what is outside of our pid namespace, where a
/// system call's wrapper would take it for a process id.
#[derive(Clone, Copy, PartialEq, Eq)]
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

    fn read(process: &Path) -> Option<Self> {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        let number = |place| field_of(&stat, place)?.parse().ok();
        Some(Self { parent: number(PARENT)?, group: number(GROUP)?, session: number(SESSION)? })
    }
}

/// Our own children, the dead that nobody has waited for with them. Orphans come to the first thread.
pub(super) fn children() -> impl Iterator<Item = Pid> {
    let us = std::process::id();
    let children = fs::read_to_string(format!("/proc/{us}/task/{us}/children")).unwrap_or_default();
    let children: Vec<_> = children.split(' ').filter_map(|child| child.parse().ok()).collect();
    children.into_iter().filter_map(Pid::from_raw)
}

/// Places in `stat`, after the name.
const STATE: usize = 0;
const PARENT: usize = 1;
const GROUP: usize = 2;
const SESSION: usize = 3;

/// Its first thread may have ended before the others.
fn has_living_thread(process: &Path) -> bool {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let state = |thread: fs::DirEntry| field(&thread.path(), STATE);
    threads.filter_map(state).any(|state| !matches!(state.as_str(), "Z" | "X"))
}

fn field(process: &Path, place: usize) -> Option<String> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    field_of(&stat, place).map(str::to_owned)
}

fn field_of(stat: &str, place: usize) -> Option<&str> {
    // The name may have blanks and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(place)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_dead_do_not_live() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().expect("sleep");
        let pid = Pid::from_child(&child);
        assert!(is_alive(pid) && has_living(pid));
        child.kill().expect("ours");
        // Nobody has waited for it yet.
        while is_alive(pid) || has_living(pid) {
            std::thread::yield_now();
        }
        child.wait().expect("ours");
        assert!(!is_alive(pid) && !has_living(pid));
    }
}
