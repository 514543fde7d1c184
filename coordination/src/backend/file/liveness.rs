//! Who lives: each session and each member id has a locked file, which the kernel unlocks when its process dies.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{self, FlockOperation};
use rustix::io::Errno;

use super::directory::{Directory, inode};
use super::error::storage;
use crate::backend::{NewSession, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// How many leftovers of dead processes one opening clears away.
const SWEEP: usize = 256;

/// The sessions of this backend, and how to tell whether another's lives.
pub(super) struct OpenSessions {
    /// One file per session, named by its id; locked as long as it lives.
    sessions: Directory,
    /// One file per member id in use, locked likewise.
    members: Directory,
    own: Mutex<HashMap<SessionId, Own>>,
}

/// Closing the descriptors is what ends the session for everybody else.
struct Own {
    session: OwnedFd,
    _member: OwnedFd,
    member_name: String,
    member: Arc<str>,
    /// The member id as it stands in queue files.
    escaped: Arc<str>,
}

/// What [`OpenSessions::open`] came to.
pub(super) enum Opened {
    Yes,
    /// Somebody has the member id; it may be a sweep that lets go in a moment.
    MemberTaken,
}

impl OpenSessions {
    pub(super) fn new(root: &Directory) -> Result<Self> {
        Ok(Self {
            sessions: root.subdirectory("sessions")?,
            members: root.subdirectory("members")?,
            own: Mutex::default(),
        })
    }

    /// Opens a session, unless its member id is in use.
    pub(super) fn open(&self, new: &NewSession) -> Result<Opened> {
        if self.is_own(new.id) {
            return Ok(Opened::Yes);
        }
        let member_name = key::encode(&new.member);
        let Some(member) = lock_named(&self.members, &member_name)? else {
            return Ok(Opened::MemberTaken);
        };
        let name = new.id.to_string();
        let Some(session) = lock_named(&self.sessions, &name)? else {
            let message = "the session's own file is locked by somebody else";
            return Err(Error::new(ErrorKind::Storage, "open", message));
        };
        // For people who look at the directory.
        let escaped = key::escape(&new.member);
        let note = format!("{} {escaped}\n", std::process::id());
        let _ = rustix::io::pwrite(&session, note.as_bytes(), 0);
        let own = Own {
            session,
            _member: member,
            member_name,
            member: Arc::clone(&new.member),
            escaped: escaped.into(),
        };
        self.own().insert(new.id, own);
        self.sweep();
        Ok(Opened::Yes)
    }

    /// Ends a session of ours; whatever it owns ends with it.
    pub(super) fn close(&self, id: SessionId) -> Result<()> {
        let Some(own) = self.own().remove(&id) else { return Ok(()) };
        // Both are removed while still locked, so that nobody else can have locked them.
        self.members.remove(&own.member_name)?;
        self.sessions.remove(&id.to_string())?;
        // Not by closing alone: a child forked meanwhile has copies of the descriptors.
        let _ = fs::flock(&own.session, FlockOperation::Unlock);
        let _ = fs::flock(&own._member, FlockOperation::Unlock);
        Ok(())
    }

    /// The member that an entry of this session of ours shows, escaped; `None`: it is not open.
    pub(super) fn escaped(&self, id: SessionId, member: &Arc<str>) -> Option<Arc<str>> {
        let own = self.own();
        let own = own.get(&id)?;
        // Most often it is the session's own: this is on the path of every file lock.
        let is_own = Arc::ptr_eq(&own.member, member) || own.member == *member;
        Some(if is_own { Arc::clone(&own.escaped) } else { key::escape(member).into() })
    }

    pub(super) fn is_own(&self, id: SessionId) -> bool {
        self.own().contains_key(&id)
    }

    /// Whether our session's file is still where others look for it.
    pub(super) fn is_in_place(&self, id: SessionId) -> Result<bool> {
        let file = match self.own().get(&id) {
            Some(own) => {
                inode(&own.session).map_err(|errno| storage("stat", self.sessions.path(), errno))?
            }
            None => return Ok(false),
        };
        Ok(self.sessions.inode(id.to_string())? == Some(file))
    }

    /// Whether the session that owns this entry lives: its file is there, and locked.
    pub(super) fn is_alive(&self, entry: &str) -> Result<bool> {
        let name = session_of(entry);
        if SessionId::parse(name).is_some_and(|id| self.is_own(id)) {
            return Ok(true);
        }
        let Some(file) = self.sessions.file_to_probe(name)? else { return Ok(false) };
        match fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            // Nobody makes a file of this name again, so it can go.
            Ok(()) => self.sessions.remove(name).map(|()| false),
            Err(errno) => Err(storage("lock", self.sessions.path(), errno)),
        }
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.sessions
    }

    /// Clears away what processes left that were killed.
    fn sweep(&self) {
        for directory in [&self.sessions, &self.members] {
            for name in directory.names().unwrap_or_default().into_iter().take(SWEEP) {
                // What cannot be swept now is swept by the next one.
                if let Ok(Some(_lock)) = lock_named_existing(directory, &name) {
                    let _ = directory.remove(&name);
                }
            }
        }
    }

    fn own(&self) -> MutexGuard<'_, HashMap<SessionId, Own>> {
        self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The session's part of an entry id.
pub(super) fn session_of(entry: &str) -> &str {
    entry.split_once('-').map_or(entry, |(session, _)| session)
}

/// Locks the file of this name, making it; `None`: somebody else has it locked.
fn lock_named(directory: &Directory, name: &str) -> Result<Option<OwnedFd>> {
    loop {
        let Some(file) = directory.file(name, true)? else {
            // It is made if it is missing, so the directory is; the next try makes a new one.
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

/// A file is locked only if it still has its name: who removes one holds its lock.
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
