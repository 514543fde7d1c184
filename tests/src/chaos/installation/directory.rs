//! `file://` under chaos.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rand::{rngs::StdRng, seq::IndexedRandom};

use super::super::things::Group;
use crate::harness::Mounted;

/// A directory for each of the two groups. Both directories are on one small disk, which a fault can fill.
#[derive(Debug)]
pub(in super::super) struct Directory {
    pub(in super::super) disk: Mounted,
}

impl Directory {
    pub(in super::super) fn start() -> Self {
        Self { disk: Mounted::new("size=64m") }
    }

    pub(in super::super) fn url(&self, group: Group) -> String {
        format!("file://{}", self.of(group).display())
    }

    pub(in super::super) fn of(&self, group: Group) -> PathBuf {
        self.disk.path().join(group.name())
    }

    /// The path of a folder within the library's directory.
    pub(in super::super) fn inside(&self, group: Group, folder: &str) -> PathBuf {
        self.of(group).join("coordination").join(folder)
    }

    /// The path of a random file in this folder; `None` if it has none.
    pub(in super::super) fn some_file(folder: &Path, rng: &mut StdRng) -> Option<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
        files.sort();
        files.choose(rng).cloned()
    }

    /// Locks the file of a random queue for this long, as the program `flock` does.
    pub(in super::super) fn hold_queue(&self, length: Duration, rng: &mut StdRng) {
        let queue = Self::some_file(&self.inside(Group::Judged, "queues"), rng);
        // If the file was deleted before it could be opened, this fault has no effect.
        if let Some(file) = queue.and_then(|path| File::open(path).ok()) {
            file.lock().expect("what is open can be locked, once it is free");
            thread::sleep(length);
        }
    }

    pub(in super::super) fn sessions(&self) -> Vec<String> {
        let folders = Group::ALL
            .into_iter()
            .flat_map(|group| ["sessions", "members"].map(|folder| self.inside(group, folder)));
        let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        files.map(|file| file.path().display().to_string()).collect()
    }
}
