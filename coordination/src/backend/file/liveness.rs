//! Which sessions live. Each session has a locked file, and so has its member id. When a process dies, the kernel unlocks its
//! files.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::RngExt;
use rustix::fs::{self, FlockOperation};
use rustix::io::Errno;

use super::directory::{Directory, Glimpse, inode};
use super::error::storage;
#[cfg(test)]
use super::queue::turn;
#[cfg(linux_kernel)]
use super::sockets::Sockets;
use super::system::{self, Inode};
use crate::backend::{NewSession, SessionId};
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// When a session is opened, this many files of each directory are checked, and those that dead processes have left are removed.
const SWEEP: usize = 256;

/// This process's open sessions, and the directories whose locked files show which sessions of other processes live.
pub(super) struct OpenSessions {
    /// One file for each session, with the session's id as its name. The file is locked as long as the session lives.
    sessions: Directory,
    /// One file for each member id in use. The file is locked as long as the session with this member id lives.
    members: Directory,
    #[cfg(linux_kernel)]
    pub(super) sockets: Sockets,
    own: Mutex<HashMap<SessionId, Own>>,
    /// How often a session of another process was probed, and how often of these under the short lock of a queue.
    #[cfg(test)]
    pub(super) probes: std::sync::atomic::AtomicUsize,
    #[cfg(test)]
    pub(super) probes_in_turn: std::sync::atomic::AtomicUsize,
}

/// The files of an open session of this process. The files are locked, which shows other processes that the session lives.
struct Own {
    session: OwnedFd,
    member: OwnedFd,
    member_name: String,
    member_id: Arc<str>,
    /// The member id in the escaped form in which it stands in queue files.
    escaped: Arc<str>,
}

/// The outcome of [`OpenSessions::open`].
pub(super) enum Opened {
    Yes,
    /// The member id is in use: a live session has it, or a process has locked the member's file and has not written its session's
    /// id into it yet.
    MemberTaken,
    /// Another process has one of the files locked only to check whether the file's owner lives. The caller tries again.
    NotYet,
}

impl OpenSessions {
    pub(super) fn new(root: &Directory) -> Result<Self> {
        Ok(Self {
            sessions: root.subdirectory("sessions")?,
            members: root.subdirectory("members")?,
            #[cfg(linux_kernel)]
            sockets: Sockets::new(root),
            own: Mutex::default(),
            #[cfg(test)]
            probes: Default::default(),
            #[cfg(test)]
            probes_in_turn: Default::default(),
        })
    }

    /// Opens a session, if its member id is not in use.
    pub(super) fn open(&self, new: &NewSession) -> Result<Opened> {
        if self.is_own(new.id) {
            return Ok(Opened::Yes);
        }
        let member_name = system::file_name(&new.member);
        let Some(member) = lock_named(&self.members, &member_name)? else {
            let is_taken = self.has_owner(&member_name)?;
            return Ok(if is_taken { Opened::MemberTaken } else { Opened::NotYet });
        };
        let name = new.id.to_string();
        // No other session has this id. So if another process has this file locked, it does so only to check whether the session
        // lives.
        let session = match lock_named(&self.sessions, &name) {
            Ok(Some(session)) => session,
            other => {
                unlock(&member);
                return other.map(|_| Opened::NotYet);
            }
        };
        // The session's file gets a text for people who look into it: the number of the process, and the member id.
        let escaped = key::escape(&new.member);
        let note = format!("{} {escaped}\n", std::process::id());
        let _ = rustix::io::pwrite(&session, note.as_bytes(), 0);
        // The member's file gets the session's id, which `has_owner` reads. All ids have the same length, so no part of an earlier
        // id is left.
        let _ = rustix::io::pwrite(&member, name.as_bytes(), 0);
        let own = Own {
            session,
            member,
            member_name,
            member_id: Arc::clone(&new.member),
            escaped: escaped.into(),
        };
        self.own().insert(new.id, own);
        self.sweep();
        Ok(Opened::Yes)
    }

    /// Ends a session of this process, and with it all its entries: their session's file is not locked any more.
    pub(super) fn close(&self, id: SessionId) -> Result<()> {
        let Some(own) = self.own().remove(&id) else { return Ok(()) };
        #[cfg(linux_kernel)]
        self.sockets.close(id);
        // Both files are removed while they are still locked, so that no other process has one of them locked when it is removed.
        let removed = remove_own(&self.members, &own.member_name, &own.member);
        let removed = removed.and(remove_own(&self.sessions, &id.to_string(), &own.session));
        unlock(&own.session);
        unlock(&own.member);
        removed
    }

    /// Unlocks the files of all sessions of ours and leaves them where they are, as the kernel does when a process dies.
    #[cfg(test)]
    pub(super) fn die(&self) {
        for own in self.own().values() {
            unlock(&own.session);
            unlock(&own.member);
        }
    }

    /// The member id `member` for an entry of this session, in escaped form; `None`: the session is not open.
    pub(super) fn escaped(&self, id: SessionId, member: &Arc<str>) -> Option<Arc<str>> {
        let own = self.own();
        let own = own.get(&id)?;
        // Nearly always `member` is the session's own member id, and its escaped form is stored. Every acquire of a file lock gets
        // here, so escaping the id again each time would cost too much.
        let is_own = Arc::ptr_eq(&own.member_id, member) || own.member_id == *member;
        Some(if is_own { Arc::clone(&own.escaped) } else { key::escape(member).into() })
    }

    pub(super) fn is_own(&self, id: SessionId) -> bool {
        self.own().contains_key(&id)
    }

    /// A copy of the descriptor of the session's locked file. While the session is open, the lock lasts as long as any copy of the
    /// descriptor is open. When this process closes the session, it unlocks the file, so the lock ends although copies are open.
    pub(super) fn file(&self, id: SessionId) -> Result<Option<OwnedFd>> {
        let own = self.own();
        let file = own.get(&id).map(|own| rustix::io::fcntl_dupfd_cloexec(&own.session, 0));
        file.transpose().map_err(|errno| storage("open", self.sessions.path(), errno))
    }

    /// Keeps the times of our session's files young, so that programs that clean up old files leave these files alone. Returns
    /// false if one of the files is no longer where other processes look for it.
    pub(super) fn keep(&self, id: SessionId) -> Result<bool> {
        let (session, member, member_name) = match self.own().get(&id) {
            Some(own) => (
                inode_of(&self.sessions, &own.session)?,
                inode_of(&self.members, &own.member)?,
                own.member_name.clone(),
            ),
            None => return Ok(false),
        };
        // If the member's file is gone, another session may have taken the member id by now.
        let files = [
            (self.members.keep(&member_name)?, member),
            (self.sessions.keep(&id.to_string())?, session),
        ];
        let is_in_place = |(there, own): (Option<Glimpse>, Inode)| {
            there.is_some_and(|glimpse| glimpse.moment.inode == own)
        };
        Ok(files.into_iter().all(is_in_place))
    }

    /// Whether our session's file is still where other processes look for it.
    pub(super) fn is_in_place(&self, id: SessionId) -> Result<bool> {
        let file = match self.own().get(&id) {
            Some(own) => inode_of(&self.sessions, &own.session)?,
            None => return Ok(false),
        };
        Ok(self.sessions.inode(id.to_string())? == Some(file))
    }

    /// Whether the session that owns this entry lives, which means that its file exists and is locked.
    pub(super) fn is_alive(&self, entry: &str) -> Result<bool> {
        let name = session_of(entry);
        if SessionId::parse(name).is_some_and(|id| self.is_own(id)) {
            return Ok(true);
        }
        #[cfg(test)]
        self.probes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        #[cfg(test)]
        self.probes_in_turn
            .fetch_add(usize::from(turn::is_now()), std::sync::atomic::Ordering::Relaxed);
        let Some(file) = self.sessions.file_to_probe(name)? else { return Ok(false) };
        if is_taken(&self.sessions, &file)? {
            return Ok(true);
        }
        // The session is dead, and no other session will ever have this id. So its file can be removed.
        #[cfg(linux_kernel)]
        SessionId::parse(name).into_iter().for_each(|session| self.sockets.remove(session));
        self.sessions.remove(name).map(|()| false)
    }

    /// Whether the member id with this file belongs to a live session. To be called only after another process was found to have
    /// the file locked. The owner of a member id writes its session's id into the file. On a full disk the owner cannot write the
    /// id. If the file has no id, whoever has the file locked is taken for a live owner.
    fn has_owner(&self, member_name: &str) -> Result<bool> {
        let Some(file) = self.members.file_to_probe(member_name)? else { return Ok(false) };
        let mut note = [0; 16];
        let read = rustix::io::pread(&file, &mut note, 0);
        read.map_err(|errno| storage("read", self.members.path(), errno))?;
        match std::str::from_utf8(&note).ok().and_then(SessionId::parse) {
            Some(session) => self.is_alive(&session.to_string()),
            None => Ok(true),
        }
    }

    /// Whether the paths of the two directories still lead to these directories.
    pub(super) fn are_directories_in_place(&self) -> Result<bool> {
        Ok(self.sessions.is_in_place()? && self.members.is_in_place()?)
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.sessions
    }

    /// Removes files that killed processes have left. Each call checks a part of the files, beginning at a random one. So each file
    /// is checked sooner or later, however many there are.
    fn sweep(&self) {
        for directory in [&self.sessions, &self.members] {
            let names = directory.names().unwrap_or_default();
            let first = env::rng().random_range(0..names.len().max(1));
            for name in names.iter().cycle().skip(first).take(SWEEP.min(names.len())) {
                // A failure is ignored: a later sweep finds the file again. `lock_named_existing` opens the file for writing. When
                // a file that was open for writing is closed, waiters take the close for the end of a session. So
                // `lock_named_existing` is called only if nobody has the file locked.
                if let Ok(false) = directory.is_fresh(name)
                    && let Ok(false) = is_locked(directory, name)
                    && let Ok(Some(_lock)) = lock_named_existing(directory, name)
                {
                    let _ = directory.remove(name);
                }
            }
        }
        #[cfg(linux_kernel)]
        self.sweep_sockets();
    }

    /// Removes sockets of sessions that have no file any more, as [`sweep`](Self::sweep) does with files. A session has its file
    /// before it has its socket.
    #[cfg(linux_kernel)]
    fn sweep_sockets(&self) {
        let sessions = self.sockets.sessions();
        let first = env::rng().random_range(0..sessions.len().max(1));
        for session in sessions.iter().cycle().skip(first).take(SWEEP.min(sessions.len())) {
            if let Ok(None) = self.sessions.inode(session.to_string()) {
                self.sockets.remove(*session);
            }
        }
    }

    fn own(&self) -> MutexGuard<'_, HashMap<SessionId, Own>> {
        self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn inode_of(directory: &Directory, file: &OwnedFd) -> Result<Inode> {
    inode(file).map_err(|errno| storage("stat", directory.path(), errno))
}

/// Removes the file with this name if it still is the open file `file`. Otherwise the file with this name belongs to another
/// session, and stays.
fn remove_own(directory: &Directory, name: &str, file: &OwnedFd) -> Result<()> {
    match directory.inode(name)? == Some(inode_of(directory, file)?) {
        true => directory.remove(name),
        false => Ok(()),
    }
}

/// Unlocks explicitly. Closing the file would not be enough: a child process that was forked while the file was locked has a copy
/// of the descriptor.
fn unlock(file: &OwnedFd) {
    let _ = fs::flock(file, FlockOperation::Unlock);
}

/// The session's id, which is the first part of an entry's id.
pub(super) fn session_of(entry: &str) -> &str {
    entry.split_once('-').map_or(entry, |(session, _)| session)
}

/// Locks the file with this name, and creates it if it is missing. `None`: another process has the file locked.
pub(super) fn lock_named(directory: &Directory, name: &str) -> Result<Option<OwnedFd>> {
    loop {
        let Some(file) = directory.file(name, true)? else {
            // `file` creates a file that is missing. So if there is none, the directory is missing. The next try to open the
            // session creates the directory.
            let message = format!("{} was removed", directory.path().display());
            return Err(Error::new(ErrorKind::Unavailable, "open", message));
        };
        match try_lock(directory, name, file)? {
            Attempt::Locked(file) => return Ok(Some(file)),
            Attempt::Taken => return Ok(None),
            Attempt::Replaced => {}
        }
    }
}

/// Whether another process has the file with this name locked. Opens the file only for reading, so that no waiter is woken.
fn is_locked(directory: &Directory, name: &str) -> Result<bool> {
    let Some(file) = directory.file_to_probe(name)? else { return Ok(false) };
    let is_taken = is_taken(directory, &file)?;
    // Unlocks explicitly, because a child process that was forked in between has a copy of the descriptor.
    let _ = fs::flock(&file, FlockOperation::Unlock);
    Ok(is_taken)
}

/// Whether another process has this file locked exclusively. If none has, this takes a shared lock on the file, which lasts as long
/// as the descriptor is open. Other processes can have a shared lock on the file at the same time, so several processes can check
/// it at once.
fn is_taken(directory: &Directory, file: &OwnedFd) -> Result<bool> {
    match fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(storage("lock", directory.path(), errno)),
    }
}

fn lock_named_existing(directory: &Directory, name: &str) -> Result<Option<OwnedFd>> {
    let Some(file) = directory.file(name, false)? else { return Ok(None) };
    match try_lock(directory, name, file)? {
        Attempt::Locked(file) => Ok(Some(file)),
        Attempt::Taken | Attempt::Replaced => Ok(None),
    }
}

enum Attempt {
    Locked(OwnedFd),
    Taken,
    Replaced,
}

/// Locks a file, and checks whether the file still has its name: since it was opened, another process may have locked and removed
/// it.
fn try_lock(directory: &Directory, name: &str, file: OwnedFd) -> Result<Attempt> {
    match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Attempt::Taken),
        Err(errno) => return Err(storage("lock", directory.path(), errno)),
    }
    let locked = inode(&file).map_err(|errno| storage("stat", directory.path(), errno))?;
    Ok(if directory.inode(name)? == Some(locked) {
        Attempt::Locked(file)
    } else {
        Attempt::Replaced
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;

    use super::super::tests::{open, store};
    use super::*;

    /// Each sweep checks only a part of the files. In the end the sweeps must find every file of a dead process, even among many
    /// live sessions.
    #[test]
    fn what_many_dead_processes_left_is_cleared_away_in_the_end() {
        let directory = TempDir::new().expect("a directory");
        let living = store(directory.path());
        let open_many = || (0..SWEEP).map(|_| open(&living).to_string());
        let folders = ["sessions", "members"].map(|name| directory.path().join("test").join(name));
        // Half of the live sessions are older than the dead files, and half are newer. Some file systems list old files first, and
        // some list new files first.
        let mut alive: HashSet<_> = open_many().collect();
        for folder in &folders {
            for _ in 0..SWEEP {
                let name = SessionId::random().to_string();
                let file = File::create(folder.join(name)).expect("the directory is ours");
                let hour = Duration::from_secs(60 * 60);
                file.set_modified(SystemTime::now() - hour).expect("it is ours");
            }
        }
        alive.extend(open_many());
        let is_clear = || {
            folders.iter().all(|folder| {
                let files = fs::read_dir(folder).expect("it is there");
                let mut names = files.map(|file| file.expect("it is listed").file_name());
                names.all(|name| alive.contains(name.to_str().expect("ours are ASCII")))
            })
        };
        // Each opened session checks at least a quarter of the files. So after 400 sessions, all files were checked with near
        // certainty.
        let is_done = (0..400).any(|_| {
            let id = open(&living);
            living.sessions.close(id).expect("it is ours");
            is_clear()
        });
        assert!(is_done, "some are never looked at");
    }

    /// When a session's file is closed that was open for writing, waiters are told that the session may have ended. So a process
    /// that only checks whether sessions live must not open their files for writing.
    #[cfg(linux_kernel)]
    #[test]
    fn whoever_connects_wakes_nobody() {
        use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

        let directory = TempDir::new().expect("a directory");
        let living = store(directory.path());
        for _ in 0..8 {
            open(&living);
        }
        let sessions = directory.path().join("test/sessions");
        for file in fs::read_dir(&sessions).expect("it is there") {
            let file = File::open(file.expect("it is listed").path()).expect("it is ours");
            let hour = Duration::from_secs(60 * 60);
            file.set_modified(SystemTime::now() - hour).expect("it is ours");
        }
        let other = store(directory.path());
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("granted");
        let ends = WatchFlags::CLOSE_WRITE | WatchFlags::DELETE;
        inotify::add_watch(&events, &sessions, ends).expect("granted");
        open(&other);
        let read = rustix::io::read(&events, &mut [0; 4096]);
        assert_eq!(read, Err(Errno::AGAIN), "those who wait look for a death that was none");
    }

    /// The process that has just created the file may be about to lock it. In that time, a sweep of another process must neither
    /// lock nor remove the file.
    #[test]
    fn what_was_made_just_now_is_not_cleared_away() {
        let directory = TempDir::new().expect("a directory");
        let store = store(directory.path());
        let fresh = directory.path().join("test/members/fresh");
        File::create(&fresh).expect("the directory is ours");
        open(&store);
        assert!(fresh.exists());
    }

    #[test]
    fn a_member_whose_file_was_removed_does_not_hold_its_id_against_another() {
        let directory = TempDir::new().expect("a directory");
        let (one, other) = (store(directory.path()), store(directory.path()));
        let open = |store: &super::super::store::Store| {
            let id = SessionId::random();
            let new = NewSession { id, member: "m".into(), ttl: Duration::ZERO };
            assert!(matches!(store.open_session(&new).expect("a new session"), Opened::Yes));
            id
        };
        let first = open(&one);
        assert!(one.sessions.keep(first).expect("the disk works"));
        let file = directory.path().join("test/members/m");
        fs::remove_file(&file).expect("it is there");
        assert!(!one.sessions.keep(first).expect("the disk works"), "another may get the id");
        let second = open(&other);
        one.sessions.close(first).expect("it is ours");
        assert!(file.exists(), "the other session's file was removed");
        assert!(other.sessions.keep(second).expect("the disk works"));
    }
}
