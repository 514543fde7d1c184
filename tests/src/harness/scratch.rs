//! Temporary directories for the data and logs of servers. They are removed after the test.
//!
//! They are in memory (`/dev/shm`) if that can be written to. A store calls `fsync` for each write, which takes a
//! different time each time on a shared disk, so the timing of the tests would vary. The environment variable
//! `COORDINATION_TEST_SCRATCH` chooses another place, for example a real disk.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    sync::Once,
    time::Duration,
};

const PREFIX: &str = "coordination-test-";
const LOCK: &str = "in-use";
/// A directory that is younger than this is never removed as abandoned, because its test may not have locked it yet.
const SETTLED: Duration = Duration::from_secs(60);

/// A new directory. It is removed on drop.
#[derive(Debug)]
pub struct Scratch {
    // Invariant: this file is locked while the directory is in use, so that `sweep` in another test process does not
    // remove the directory.
    _lock: File,
    directory: tempfile::TempDir,
}

impl Scratch {
    /// A new directory whose name contains `name`.
    ///
    /// # Panics
    ///
    /// When the directory cannot be created.
    pub fn new(name: &str) -> Self {
        static SWEPT: Once = Once::new();
        let parent = parent();
        SWEPT.call_once(|| sweep(&parent));
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{name}-"))
            .tempdir_in(&parent)
            .expect("the scratch directory is writable");
        let lock = File::create(directory.path().join(LOCK)).expect("the directory is ours");
        lock.try_lock().expect("nobody else knows the file");
        Self { _lock: lock, directory }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The path of the file `name` in the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

fn parent() -> PathBuf {
    if let Some(chosen) = env::var_os("COORDINATION_TEST_SCRATCH") {
        let chosen = PathBuf::from(chosen);
        fs::create_dir_all(&chosen).expect("COORDINATION_TEST_SCRATCH can be created");
        return chosen;
    }
    let memory = PathBuf::from("/dev/shm");
    match tempfile::tempfile_in(&memory) {
        Ok(_) => memory,
        Err(_) => env::temp_dir(),
    }
}

/// Removes directories that killed test processes have left behind, because each may have 64 MiB per etcd node.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && is_abandoned(&entry) {
            // Fails if another process removes the same directory at the same time, which does not matter.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(entry: &fs::DirEntry) -> bool {
    let age = entry
        .metadata()
        .and_then(|metadata| metadata.modified())
        .ok()
        .and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age > SETTLED)
        && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
}
