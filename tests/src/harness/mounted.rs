//! A temporary file system in memory that a test can fill up or make read-only. Mounting it requires root.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use super::Scratch;

/// A mounted tmpfs. It is unmounted on drop.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    _scratch: Scratch,
}

impl Mounted {
    /// Mounts a tmpfs with these options of `mount`, such as `size=1m`.
    ///
    /// # Panics
    ///
    /// When this process may not mount.
    pub fn new(options: &str) -> Self {
        let scratch = Scratch::new("mount");
        let path = scratch.join("disk");
        fs::create_dir(&path).expect("the scratch directory is ours");
        mount(&["-t", "tmpfs", "-o", options, "tmpfs"], &path);
        Self { path, _scratch: scratch }
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Remounts the file system with these options.
    ///
    /// # Panics
    ///
    /// When this process may not mount.
    pub fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.path);
    }

    /// Fills the file system with one file until no room is left. Returns the path of the file. To make room again, the
    /// test can remove the file.
    ///
    /// # Panics
    ///
    /// When there is no room for an empty file.
    pub fn fill(&self) -> PathBuf {
        let path = self.path.join("filler");
        let mut filler = File::create(&path).expect("an empty file takes no room");
        while filler.write_all(&[0; 512]).is_ok() {}
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // `--lazy` is needed because processes of a failed test may still use the file system.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

fn mount(arguments: &[&str], path: &Path) {
    let done = Command::new("mount").args(arguments).arg(path).output().expect("`mount` is there");
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "this test mounts a tmpfs, which takes root: {message}");
}
