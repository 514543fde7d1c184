//! A directory of the store. When the directory is opened, its owner, mode and file system are checked. Then it stays open.

use std::ffi::OsStr;
#[cfg(linux_kernel)]
use std::os::fd::AsRawFd as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::path::Arg;

use super::config::Config;
use super::error::storage;
use super::system::{self, Inode, State};
use crate::env::unix_micros;
use crate::error::{Error, ErrorKind, Result};

/// Flags for every file that is opened: do not follow a symbolic link, do not wait for the other end of a FIFO, and do not pass the
/// descriptor to a child that executes a program.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// How often a file or directory is opened again if access is denied, and how long to wait before each try. Another process may
/// have created it a moment ago and not have set its mode yet. Until that process sets the mode, its umask may keep out other
/// users, or even the process itself.
const TRIES: usize = 20;
const BEFORE_TRY: Duration = Duration::from_millis(1);

/// Some file systems store times with a resolution of seconds. If a file's last change is longer ago than this, its next change is
/// sure to get a different time. Otherwise both changes may have the same time.
const STEP: Duration = Duration::from_secs(3);
/// [`Directory::keep`] sets a file's times to now if they are older than this. Programs that clean up temporary files remove only
/// files that are much older, so they leave this file alone.
const OLD: Duration = Duration::from_secs(60 * 60);

/// A file that is empty and younger than about this counts as just created: its creator may be about to lock it, so nobody may
/// remove it. Only the second in which a file was changed is known. With one second, a file that was created at the end of a second
/// would be old at once.
const FRESH: Duration = Duration::from_secs(2);

/// Sets both times of a file to now.
pub(super) const NOW: Timestamps = {
    let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
};

/// A file's identity and the time of its last change. If both are still the same when they are read again, the file was not changed
/// in between. This is certain only if [`Glimpse::is_settled`] was true when they were first read: otherwise a later change may
/// have the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) inode: Inode,
    changed: (i64, u32),
}

/// A file's state, as read without opening the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glimpse {
    pub(super) moment: Moment,
    /// Whether the last change is so long ago that the next one will have a different time.
    pub(super) is_settled: bool,
}

impl Glimpse {
    fn of(state: State) -> Self {
        Self {
            moment: Moment { inode: state.inode, changed: state.changed },
            is_settled: state.changed.0 < seconds_ago(STEP),
        }
    }
}

/// An open directory of the store, and its path.
#[derive(Debug)]
pub(super) struct Directory {
    handle: OwnedFd,
    path: PathBuf,
    /// With `mode=0770`: files of this group are accepted, whichever user owns them. `None`: only files that our own user owns are
    /// accepted.
    group: Option<u32>,
}

impl Directory {
    /// Opens the namespace's directory within the configured directory. Creates either of the two if it is missing, but never the
    /// parent of the configured directory.
    pub(super) fn open(config: &Config, namespace: &str) -> Result<Self> {
        let path = &config.directory;
        let is_new = make(path)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let handle =
            fs::open(path, flags, Mode::empty()).map_err(|errno| storage("open", path, errno))?;
        let mut root = Self { handle, path: path.clone(), group: None };
        if config.is_for_group {
            root.group = Some(root.stat()?.st_gid);
        }
        if is_new {
            root.set_mode_or_remove(|| fs::rmdir(path))?;
        }
        let network = root.network_name()?;
        if let Some(name) = network.filter(|_| !config.network_allowed) {
            return Err(refuse_network(&name, path));
        }
        root.check_mode()?;
        root.subdirectory(&system::file_name(namespace))
    }

    /// Opens a directory within this one. Creates it if it is missing.
    pub(super) fn subdirectory(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        let is_new = match fs::mkdirat(&self.handle, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(storage("open", &path, errno)),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let open = || fs::openat(&self.handle, name, flags, Mode::empty());
        let handle = patiently(open).map_err(|errno| storage("open", &path, errno))?;
        let directory = Self { handle, path, group: self.group };
        if is_new {
            let remove = || fs::unlinkat(&self.handle, name, AtFlags::REMOVEDIR);
            directory.set_mode_or_remove(remove)?;
        }
        directory.check_owner(&directory.stat()?)?;
        directory.check_mode()?;
        Ok(directory)
    }

    /// Opens a regular file of the store. With `create`, creates the file if it is missing. `Ok(None)`: the file does not exist.
    pub(super) fn file(&self, name: &str, create: bool) -> Result<Option<OwnedFd>> {
        let flags = if create { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDWR };
        self.open_file(name, SAFE | flags)
    }

    /// Opens a regular file of the store only to check whether it is locked, or to read it. The file is opened read-only, because
    /// inotify reports the close of a file that was open for writing, and such a report would wake every waiter.
    pub(super) fn file_to_probe(&self, name: &str) -> Result<Option<OwnedFd>> {
        self.open_file(name, SAFE | OFlags::RDONLY)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
        // In a directory that a group shares, the file may have another owner, and then the system would refuse the flag.
        let flags = if self.group.is_none() { flags | system::quiet() } else { flags };
        match patiently(|| fs::openat(&self.handle, name, flags, self.file_mode())) {
            Ok(file) => self.checked(name, file).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(storage("open", &self.path.join(name), errno)),
        }
    }

    /// The identity of the file with this name; `None`: there is no such file.
    pub(super) fn inode(&self, name: impl Arg) -> Result<Option<Inode>> {
        match system::inode(&self.handle, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(storage("stat", &self.path, errno)),
        }
    }

    /// Reads a file's identity and the time of its last change. `None`: there is no file with this name.
    pub(super) fn glimpse(&self, name: &str) -> Result<Option<Glimpse>> {
        Ok(self.state(name)?.map(Glimpse::of))
    }

    /// Does what [`glimpse`](Self::glimpse) does. If the file's times are old, also sets them to now, so that programs that clean up
    /// temporary files do not take it for unused: a session may need a file for months without writing to it.
    ///
    /// That the times cannot be set, as on a disk that is full or takes no writes any more, is no failure: the file is there, which
    /// is what counts for a session, and it is tried again.
    pub(super) fn keep(&self, name: &str) -> Result<Option<Glimpse>> {
        self.keep_by(name, |name| self.touch(name))
    }

    fn keep_by(
        &self,
        name: &str,
        touch: impl FnOnce(&str) -> Result<(), Errno>,
    ) -> Result<Option<Glimpse>> {
        let Some(state) = self.state(name)? else { return Ok(None) };
        if state.accessed.min(state.modified) < seconds_ago(OLD)
            && let Err(error) = touch(name)
        {
            tracing::debug!(%error, path = %self.path.join(name).display(), "cannot keep a file young");
        }
        Ok(Some(Glimpse::of(state)))
    }

    /// What is known of the file with this name; `None`: there is no such file.
    fn state(&self, name: &str) -> Result<Option<State>> {
        match system::state(&self.handle, name) {
            Ok(state) => Ok(Some(state)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(storage("stat", &self.path.join(name), errno)),
        }
    }

    /// Sets a file's times to now; the file may be gone already.
    pub(super) fn touch(&self, name: &str) -> Result<(), Errno> {
        match fs::utimensat(&self.handle, name, &NOW, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            touched => touched,
        }
    }

    /// Whether there is a file with this name that was not written to for the time `unused`.
    pub(super) fn is_unused(&self, name: &str, unused: Duration) -> Result<bool> {
        Ok(self.state(name)?.is_some_and(|state| state.modified <= seconds_ago(unused)))
    }

    /// Whether this file was created just now and is still empty. Its creator may be about to lock it then, so nobody may remove
    /// it.
    pub(super) fn is_fresh(&self, name: &str) -> Result<bool> {
        let is_fresh = |state: State| state.size == 0 && state.modified > seconds_ago(FRESH);
        Ok(self.state(name)?.is_some_and(is_fresh))
    }

    /// Waits until the disk has the directory's current list of names, so that a file that was added or removed stays so after a
    /// loss of power.
    pub(super) fn sync(&self) -> Result<()> {
        system::sync(&self.handle).map_err(|errno| storage("sync", &self.path, errno))
    }

    /// Removes a file; it may be gone already.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match fs::unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(storage("remove", &self.path.join(name), errno)),
        }
    }

    /// The names of all files in the directory that may be files of the store.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        self.listing()?.filter_map(Result::transpose).collect()
    }

    /// The names in the directory, one after the other. `None` stands for `.`, `..` and each name that is not UTF-8: no file of the
    /// store has such a name.
    pub(super) fn listing(
        &self,
    ) -> Result<impl Iterator<Item = Result<Option<String>>> + Send + use<'_>> {
        let failed = |errno| storage("list", &self.path, errno);
        let listing = fs::Dir::read_from(&self.handle).map_err(failed)?;
        Ok(listing.map(move |item| {
            let item = item.map_err(failed)?;
            // The names of our files are ASCII, so a name that is not UTF-8 is not one of them.
            let name = item.file_name().to_str().ok();
            Ok(name.filter(|name| !matches!(*name, "." | "..")).map(str::to_owned))
        }))
    }

    /// Whether the directory is on a network file system, which several hosts may use.
    pub(super) fn is_on_network(&self) -> Result<bool> {
        Ok(self.network_name()?.is_some())
    }

    /// Whether the directory's path still leads to the directory that was opened, and not to another one or to none.
    ///
    /// # Errors
    ///
    /// The path cannot be resolved at the moment. This error does not say whether the directory is still there.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        let there = match fs::stat(&self.path) {
            Ok(there) => there,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(errno) => return Err(storage("stat", &self.path, errno)),
        };
        let here = self.stat()?;
        Ok((there.st_dev, there.st_ino) == (here.st_dev, here.st_ino))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// SEC-6: accepts only a regular file that belongs to our user or group and has only one name. Any other file may have been put
    /// there by somebody else, who could use it to stop our locks from working, or to do other harm.
    fn checked(&self, name: &str, file: OwnedFd) -> Result<OwnedFd> {
        let path = self.path.join(name);
        let stat = fs::fstat(&file).map_err(|errno| storage("open", &path, errno))?;
        let refuse = |what: &str| {
            let message = format!("{} {what}; remove it if nothing else needs it", path.display());
            Err(Error::new(ErrorKind::Permission, "open", message))
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return refuse("is not a regular file");
        }
        if stat.st_nlink > 1 {
            return refuse("has more than one name (hard links)");
        }
        self.check_owner(&stat)?;
        // If our own user owns the file, this sets its mode: the umask of the process that created the file may have removed a part
        // of the mode.
        let wanted = self.file_mode();
        if stat.st_uid == own() && !Mode::from_raw_mode(stat.st_mode).contains(wanted) {
            fs::fchmod(&file, wanted).map_err(|errno| storage("open", &path, errno))?;
        }
        Ok(file)
    }

    fn check_owner(&self, stat: &Stat) -> Result<()> {
        if stat.st_uid == own() || self.group == Some(stat.st_gid) {
            return Ok(());
        }
        let advice = match self.group {
            None => "give every user a directory of its own, or share it with `mode=0770`",
            Some(_) => "and it is not of the directory's group",
        };
        let message = format!(
            "{}: a file there belongs to user {} and this process runs as {}; {advice}",
            self.path.display(),
            user(stat.st_uid),
            user(own()),
        );
        Err(Error::new(ErrorKind::Permission, "open", message))
    }

    /// The mode that every file of the store has, whatever the umask is.
    fn file_mode(&self) -> Mode {
        let own = Mode::RUSR | Mode::WUSR;
        if self.group.is_some() { own | Mode::RGRP | Mode::WGRP } else { own }
    }

    /// In a directory that a group shares, gives the socket of this name, which is ours, the mode that every file of the store has.
    #[cfg(linux_kernel)]
    pub(super) fn share_socket(&self, name: &str) -> Result<(), Errno> {
        if self.group.is_none() {
            return Ok(());
        }
        // Somebody of the group may have put a link there, which must not lead to a file of ours.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = fs::openat(&self.handle, name, flags, Mode::empty())?;
        let stat = fs::fstat(&socket)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_uid != own() {
            return Err(Errno::LOOP);
        }
        fs::chmod(format!("/proc/thread-self/fd/{}", socket.as_raw_fd()), self.file_mode())
    }

    #[cfg(linux_kernel)]
    pub(super) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Sets the mode of a directory that was just created, whatever the umask is. If that fails, removes the directory again:
    /// otherwise whoever connects next would take it for one that is as it should be.
    fn set_mode_or_remove(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<()> {
        fs::fchmod(&self.handle, self.directory_mode()).map_err(|errno| {
            let _ = remove();
            storage("open", &self.path, errno)
        })
    }

    /// The mode of a new directory. If a group shares it, new files in it are to get that group. Linux gives them the group of the
    /// process, unless the directory has the set-group-ID bit. Other systems give them the group of the directory anyway, and
    /// refuse the bit to a user who is not in that group.
    fn directory_mode(&self) -> Mode {
        let inherits = if cfg!(linux_kernel) { Mode::SGID } else { Mode::empty() };
        match self.group {
            None => Mode::RWXU,
            Some(_) => Mode::RWXU | Mode::RWXG | inherits,
        }
    }

    fn check_mode(&self) -> Result<()> {
        let mode = Mode::from_raw_mode(self.stat()?.st_mode);
        if mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
            let message = format!(
                "{} is writable by everybody without the sticky bit; `chmod o-w` or `chmod +t` it",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Permission, "open", message));
        }
        Ok(())
    }

    fn stat(&self) -> Result<Stat> {
        fs::fstat(&self.handle).map_err(|errno| storage("stat", &self.path, errno))
    }

    fn network_name(&self) -> Result<Option<String>> {
        system::network_name(&self.handle).map_err(|errno| storage("statfs", &self.path, errno))
    }
}

/// The time that was `duration` ago, in seconds of UNIX time, for comparison with the times of files.
fn seconds_ago(duration: Duration) -> i64 {
    let then = Duration::from_micros(unix_micros()).saturating_sub(duration);
    i64::try_from(then.as_secs()).unwrap_or(i64::MAX)
}

/// The identity of an open file.
pub(super) fn inode(file: &OwnedFd) -> Result<Inode, Errno> {
    fs::fstat(file).map(|stat| stat.st_ino)
}

/// The user as which this process accesses files.
fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A user's number, together with the user's name if this host knows it. For error messages.
fn user(id: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    });
    name.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
}

/// Opens a file or directory. If access is denied, tries again for a while: another process may have created it a moment ago, and
/// not have set its mode yet.
fn patiently(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match open() {
            Err(Errno::ACCESS) => thread::sleep(BEFORE_TRY),
            opened => return opened,
        }
    }
    open()
}

/// Creates the directory if its parent exists. The parent is not created, because a misspelt path must not become a new tree.
/// Returns whether the directory was created: false if it existed.
fn make(path: &Path) -> Result<bool> {
    match fs::mkdir(path, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(Errno::NOENT) => {
            let parent = path.parent().map(Path::as_os_str).unwrap_or(OsStr::new("/"));
            let message = format!("{} does not exist; make it first", Path::new(parent).display());
            Err(Error::config(message))
        }
        Err(errno) => Err(storage("open", path, errno)),
    }
}

fn refuse_network(name: &str, path: &Path) -> Error {
    let message = format!(
        "{} is on {name}, where locks of this kind may not reach other hosts; use a local directory, or `?network_filesystem=allow` at your own risk",
        path.display()
    );
    Error::new(ErrorKind::Unsupported, "open", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever connects next must not find a directory whose mode is not the one that was asked for.
    #[cfg(linux_kernel)]
    #[test]
    fn a_directory_whose_mode_cannot_be_set_does_not_stay() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let path = parent.path().join("locks");
        assert!(make(&path).expect("it is ours"));
        // A descriptor by which no mode can be set.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = fs::open(&path, flags, Mode::empty()).expect("it is ours");
        let directory = Directory { handle, path: path.clone(), group: None };
        let outcome = directory.set_mode_or_remove(|| fs::rmdir(&path));
        assert_eq!(outcome.expect_err("it has no mode").kind(), ErrorKind::Storage);
        assert!(!path.exists());
    }

    /// Such a disk takes no writes any more, and whoever has locked a file there still has it.
    #[test]
    fn a_file_whose_times_cannot_be_set_is_there() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let yesterday = std::time::SystemTime::now() - 24 * OLD;
        let file = std::fs::File::create(parent.path().join("m")).expect("it is ours");
        file.set_modified(yesterday).expect("it is ours");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = fs::open(parent.path(), flags, Mode::empty()).expect("it is ours");
        let directory = Directory { handle, path: parent.path().to_owned(), group: None };
        let mut is_tried = false;
        let kept = directory.keep_by("m", |_| {
            is_tried = true;
            Err(Errno::ROFS)
        });
        assert!(kept.expect("it is there").is_some() && is_tried);
    }

    /// Here the file has the time of the second before, as if that second had ended since.
    #[test]
    fn a_file_that_was_made_at_the_end_of_a_second_is_fresh() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = fs::open(parent.path(), flags, Mode::empty()).expect("it is ours");
        let directory = Directory { handle, path: parent.path().to_owned(), group: None };
        let file = std::fs::File::create(parent.path().join("m")).expect("it is ours");
        // If a second ends between these lines, the file is two seconds old.
        let is_fresh = || {
            let second = unix_micros() / 1_000_000;
            let before = std::time::UNIX_EPOCH + Duration::from_millis(second * 1_000 - 1);
            file.set_modified(before).expect("it is ours");
            directory.is_fresh("m").expect("it can be looked at")
        };
        assert!((0..3).any(|_| is_fresh()), "its creator may be about to lock it");
    }

    #[test]
    fn network_file_systems_are_refused_by_name() {
        let error = refuse_network("NFS", Path::new("/x"));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("/x is on NFS"), "{error}");
    }
}
