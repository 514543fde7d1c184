//! The directory's contents: queues, and what entries amount to given who lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use super::config::Config;
use super::directory::Directory;
use super::log::Record;
use super::queue::{Locked, QueueFile};
use super::session::{Sessions, session_of};
use super::watch::{Waiting, Watcher};
use crate::backend::{Entry, EntryId, EntryRef, NewEntry, Position, Predecessor};
use crate::error::{Error, LossReason, Result};
use crate::key::{self, QueueKey};
use crate::time::unix_micros;

/// How many queue files are kept open while nobody uses them.
const OPEN_FILES: usize = 256;

/// An open directory.
///
/// Every step answers `None` when a queue's short lock was not to be had; nothing was done then.
pub(super) struct Store {
    root: Directory,
    queues: Directory,
    pub(super) sessions: Sessions,
    open: Mutex<HashMap<QueueKey, Arc<Mutex<QueueFile>>>>,
    watcher: Watcher,
    /// On a file system that was taken in spite of all.
    pub(super) is_on_network: bool,
}

impl Store {
    pub(super) fn open(config: &Config, namespace: &str) -> Result<Self> {
        let root = Directory::open(config, namespace)?;
        Ok(Self {
            queues: root.subdirectory("queues")?,
            sessions: Sessions::new(&root)?,
            is_on_network: root.is_on_network()?,
            root,
            open: Mutex::default(),
            watcher: Watcher::new(),
        })
    }

    /// Whether the URL's path still leads here.
    pub(super) fn is_in_place(&self) -> bool {
        self.root.is_in_place()
            && self.queues.is_in_place()
            && self.sessions.directory().is_in_place()
    }

    pub(super) fn enter(&self, new: &NewEntry) -> Option<Result<Position>> {
        self.with_queue(&new.place.queue, |queue| self.enter_locked(queue, new))
    }

    /// [`enter`](Self::enter), returning when the entry is on the disk.
    pub(super) fn enter_durably(&self, new: &NewEntry) -> Option<Result<Position>> {
        self.with_queue(&new.place.queue, |queue| {
            let position = self.enter_locked(queue, new)?;
            queue.sync()?;
            Ok(position)
        })
    }

    fn enter_locked(&self, queue: &mut Locked<'_>, new: &NewEntry) -> Result<Position> {
        let id = new.place.id.as_str();
        if let Some(seq) = queue.log().find(id) {
            return self.position_of(queue, seq);
        }
        let Some(member) = self.sessions.member(new.session) else {
            return Err(Error::lost("enter", LossReason::ExpiredByServer));
        };
        let now = unix_micros();
        let seq = queue.log().last.saturating_add(1).max(now);
        let since_ms = now / 1000;
        queue.enter(seq, Record { id: new.place.id.shared(), since_ms, member, at: 0 })?;
        self.position_of(queue, seq)
    }

    pub(super) fn leave(&self, entry: &EntryRef) -> Option<Result<()>> {
        // An entry in a file that was replaced meanwhile is gone already.
        self.with_open_queue(&entry.queue, false, |queue| {
            match queue.log().find(entry.id.as_str()) {
                Some(seq) => queue.leave(seq),
                None => Ok(()),
            }
        })
    }

    pub(super) fn position(&self, entry: &NewEntry) -> Option<Result<Option<Position>>> {
        self.with_queue(&entry.place.queue, |queue| {
            let own = queue
                .log()
                .find(entry.place.id.as_str())
                .filter(|_| self.sessions.is_own(entry.session));
            own.map(|seq| self.position_of(queue, seq)).transpose()
        })
    }

    pub(super) fn entries(&self, key: &QueueKey) -> Option<Result<Vec<Entry>>> {
        self.with_queue(key, |queue| {
            let mut entries = Vec::new();
            for (seq, record) in queue.log().live() {
                if self.sessions.is_alive(&record.id)? {
                    let since = UNIX_EPOCH.checked_add(Duration::from_millis(record.since_ms));
                    let id = EntryId::from_store(Arc::clone(&record.id));
                    let member = key::unescape(&record.member).unwrap_or_default();
                    entries.push(Entry { id, seq: *seq, member, since });
                }
            }
            Ok(entries)
        })
    }

    /// Whether the entry stands in its queue, and its session lives.
    pub(super) fn is_present(&self, entry: &EntryRef) -> Option<Result<bool>> {
        self.with_queue(&entry.queue, |queue| match queue.log().find(entry.id.as_str()) {
            Some(_) => self.sessions.is_alive(entry.id.as_str()),
            None => Ok(false),
        })
    }

    /// Whether the entry goes within this time, asking ever less often.
    pub(super) async fn dies_within(&self, entry: &EntryRef, limit: Duration) -> Result<bool> {
        let mut pause = Duration::from_millis(1);
        let mut waited = Duration::ZERO;
        // It may also leave meanwhile: nobody listens for that here.
        while self.is_present(entry).transpose()? != Some(false) {
            if waited >= limit {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause *= 2;
        }
        Ok(true)
    }

    /// Starts to listen for changes; `None`: the system grants no more watches.
    pub(super) fn listen(&self, key: &QueueKey) -> Result<Option<Waiting>> {
        let queue = self.queue(key)?;
        let path = lock(&queue).path().to_owned();
        Ok(self.watcher.listen(&path, self.sessions.directory().path()))
    }

    /// Where the entry with this number stands; entries of dead sessions before it are removed.
    fn position_of(&self, queue: &mut Locked<'_>, seq: u64) -> Result<Position> {
        loop {
            let before = queue.log().before(seq);
            let Some((before, id)) = before.map(|(seq, record)| (seq, Arc::clone(&record.id)))
            else {
                return Ok(Position { seq, predecessor: None });
            };
            if self.sessions.is_alive(&id)? {
                return Ok(Position {
                    seq,
                    predecessor: Some(Predecessor { id: EntryId::from_store(id), seq: before }),
                });
            }
            tracing::debug!(session = session_of(&id), "removing an entry of a dead session");
            queue.leave(before)?;
        }
    }

    /// Runs one step under the queue's short lock, on the file that has the queue's name now.
    fn with_queue<T>(
        &self,
        key: &QueueKey,
        step: impl FnOnce(&mut Locked<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        self.with_open_queue(key, true, step)
    }

    /// The same; on the file as it was opened unless `in_place`.
    fn with_open_queue<T>(
        &self,
        key: &QueueKey,
        in_place: bool,
        step: impl FnOnce(&mut Locked<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        loop {
            let shared = match self.queue(key) {
                Ok(shared) => shared,
                Err(error) => return Some(Err(error)),
            };
            let mut queue = lock(&shared);
            let mut locked = match queue.lock() {
                Ok(Some(locked)) => locked,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            match if in_place { locked.is_in_place(&self.queues) } else { Ok(true) } {
                Ok(true) => return Some(step(&mut locked)),
                Ok(false) => drop(locked),
                Err(error) => return Some(Err(error)),
            }
            // Somebody removed or replaced the file: open the one that is there now.
            let mut open = self.open_files();
            if open.get(key).is_some_and(|current| Arc::ptr_eq(current, &shared)) {
                open.remove(key);
            }
        }
    }

    fn queue(&self, key: &QueueKey) -> Result<Arc<Mutex<QueueFile>>> {
        let mut open = self.open_files();
        if let Some(queue) = open.get(key) {
            return Ok(Arc::clone(queue));
        }
        if open.len() >= OPEN_FILES {
            open.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        let queue = Arc::new(Mutex::new(QueueFile::open(&self.queues, key)?));
        open.insert(key.clone(), Arc::clone(&queue));
        Ok(queue)
    }

    fn open_files(&self) -> MutexGuard<'_, HashMap<QueueKey, Arc<Mutex<QueueFile>>>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn lock(queue: &Mutex<QueueFile>) -> MutexGuard<'_, QueueFile> {
    // A panic within a step leaves the file's lock dropped and its next read a fresh one.
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
