//! What is done in a store's directory. This changes queues, and finds out which entries are live: those whose sessions live.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use super::config::Config;
use super::directory::Directory;
use super::floor::Floor;
use super::held::{Looks, Share};
#[cfg(linux_kernel)]
use super::inotify::Watcher;
use super::liveness::{OpenSessions, Opened, session_of};
use super::log::{self, Record, Removed, Written};
use super::open_files::OpenFiles;
use super::queue::{self, Locked, LogState, QueueFile};
use crate::backend::pending_writes::PendingWrites;
use crate::backend::{
    Blocker, Clock, Data, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position,
    SessionId, Value, Write,
};
use crate::canary::{Canary, sings};
use crate::env::{HostClock, unix_micros};
use crate::error::{Effect, Error, LossReason, Result};
use crate::key::{self, QueueKey};
use crate::time::{BootInstant, number_after};

/// With `durable`: how often a thread tries to lock a queue's open file while another thread of this process uses that file.
const TRIES: usize = 20;

/// The open directory of a namespace.
///
/// A method that needs a queue's short lock returns `None` if another process has the lock. Then nothing was done, and the caller
/// tries again.
pub(super) struct Store {
    pub(super) queues: Directory,
    pub(super) floor: Floor,
    pub(super) sessions: OpenSessions,
    pub(super) open_files: OpenFiles,
    /// For each held entry, the state that its queue's file had when a heartbeat last found the entry there.
    pub(super) looks: Looks,
    /// Writes that have created a value and whose callers have no answer yet. If such a write is repeated after another write has
    /// removed the value, the repeated write must not create the value a second time.
    pub(super) unanswered: PendingWrites<()>,
    #[cfg(linux_kernel)]
    pub(super) watcher: Watcher,
    /// Whether each change has to be on the disk before it is answered.
    pub(super) durable: bool,
    /// The host's clock; `None`: it cannot be read on this system.
    clock: Option<HostClock>,
    /// Whether the directory is on a network file system. If so, the URL allows it by the option `network_filesystem`.
    pub(super) is_on_network: bool,
}

/// What a watcher has seen of a queue.
pub(super) struct Seen {
    pub(super) revision: u64,
    /// The state of the log. The revision depends on it, and on which sessions live.
    pub(super) state: LogState,
    /// An entry of each session that has entries in the queue and lives.
    pub(super) alive: Vec<Arc<str>>,
}

impl Store {
    pub(super) fn open(config: &Config, namespace: &str) -> Result<Self> {
        let root = Directory::open(config, namespace)?;
        let store = Self {
            queues: root.subdirectory("queues")?,
            floor: Floor::default(),
            sessions: OpenSessions::new(&root)?,
            is_on_network: root.is_on_network()?,
            open_files: OpenFiles::new(),
            looks: Looks::default(),
            unanswered: PendingWrites::default(),
            #[cfg(linux_kernel)]
            watcher: Watcher::new(),
            durable: config.durable,
            clock: HostClock::find(),
        };
        store.keep_floor();
        Ok(store)
    }

    /// Makes sure that the floor's file exists (`floor.rs`). Numbers of new queues begin above the number in it. If the file cannot
    /// be created now, a later heartbeat creates it.
    pub(super) fn keep_floor(&self) {
        if let Err(error) = self.floor.keep(&self.queues, self.durable) {
            tracing::debug!(%error, "cannot keep the floor");
        }
    }

    /// Whether the path in the URL still leads to the directories that are open.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        Ok(self.queues.is_in_place()? && self.sessions.are_directories_in_place()?)
    }

    /// Opens a session if that needs no waiting. Otherwise returns why the session cannot be opened now, and the caller tries
    /// again.
    pub(super) fn open_session(&self, new: &NewSession) -> Result<Opened> {
        self.open_files.with_room(|| self.sessions.open(new))
    }

    pub(super) fn is_alive(&self, entry: &str) -> Result<bool> {
        self.open_files.with_room(|| self.sessions.is_alive(entry))
    }

    pub(super) fn enter(&self, queue: &mut Locked<'_>, new: &NewEntry) -> Result<Position> {
        let seq = self.find_or_enter(queue, new)?;
        // From here on, the entry is in the queue, even if a later part of this function fails. So an error from a later part has
        // an unknown effect.
        let position = self.position_of(queue, seq, new.mode).map_err(in_doubt)?;
        self.persist(queue, position)
    }

    fn find_or_enter(&self, queue: &mut Locked<'_>, new: &NewEntry) -> Result<u64> {
        if let Some(seq) = queue.log().find(new.entry_ref.id.as_str()) {
            return Ok(seq);
        }
        let Some(member) = self.sessions.escaped(new.session, &new.member) else {
            return Err(Error::lost("enter", LossReason::ExpiredByServer));
        };
        let now = unix_micros();
        let seq = next(queue, now);
        let record = Record {
            id: new.entry_ref.id.shared(),
            since_ms: now / 1000,
            member,
            label: new.label.clone(),
            mode: new.mode,
            data: log::with_room(&new.data, new.room),
        };
        queue.enter(seq, record)?;
        Ok(seq)
    }

    pub(super) fn update(&self, queue: &mut Locked<'_>, new: &NewEntry, seq: u64) -> Result<bool> {
        let Some(record) = self.own(queue, new, seq) else { return Ok(false) };
        let data = log::with_room(&new.data, new.room);
        if (record.mode, &record.data) != (new.mode, &data) {
            if (record.mode, new.mode) == (Mode::Exclusive, Mode::Shared) {
                self.wake_blocked(queue, seq);
            }
            queue.update(seq, new.mode, &data)?;
        }
        self.persist(queue, true)
    }

    pub(super) fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Option<Result<()>> {
        let id = entry.id.as_str();
        let step = |queue: &mut Locked<'_>| {
            let found = match seq {
                Some(seq) => queue.log().get(seq, id).map(|_| seq),
                None => queue.log().find(id),
            };
            let left = found.map_or(Ok(()), |seq| self.remove(queue, seq));
            if sings(Canary::UnlinkOnRelease) && queue.log().live().is_empty() {
                self.queues.remove(&queue::file_name(&entry.queue))?;
            }
            left
        };
        let mut is_in_place = false;
        let left = self.with_open_queue(&entry.queue, false, |queue| {
            step(queue)?;
            is_in_place = queue.is_in_place(&self.queues)?;
            Ok(())
        });
        if is_in_place || !matches!(left, Some(Ok(()))) {
            return left;
        }
        // Somebody may have replaced the queue's file by a copy that has this entry too. If the entry were not removed from the
        // copy as well, it would block other entries there as long as the session lives.
        let leave_successor = || {
            let open = || QueueFile::open_existing(&self.queues, &entry.queue, &self.floor);
            let Some(mut file) = self.open_files.with_room(open)? else {
                return Ok(Some(()));
            };
            let Some(mut queue) = file.lock()? else { return Ok(None) };
            step(&mut queue).map(Some)
        };
        leave_successor().transpose()
    }

    pub(super) fn position(&self, new: &NewEntry, seq: u64) -> Option<Result<Option<Position>>> {
        self.with_queue(&new.entry_ref.queue, |queue| {
            if self.own(queue, new, seq).is_none() {
                return Ok(None);
            }
            self.position_of(queue, seq, new.mode).map(Some)
        })
    }

    /// The entry with the number `seq`, if it is the one that `new` names, and its session is open in this process.
    fn own<'a>(&self, queue: &'a Locked<'_>, new: &NewEntry, seq: u64) -> Option<&'a Record> {
        let id = new.entry_ref.id.as_str();
        let is_own = SessionId::parse(session_of(id)) == Some(new.session)
            && self.sessions.is_own(new.session);
        queue.log().get(seq, id).filter(|_| is_own)
    }

    pub(super) fn read(&self, key: &QueueKey) -> Option<Result<Listing>> {
        // Most often all sessions live. So they are probed after the short lock was let go, which others need: a session that lives
        // then has lived before, too.
        let read = self.with_queue(key, |queue| Ok(self.listing(queue)))?;
        let probed = read.and_then(|listing| {
            let entries = listing.entries.iter().map(|entry| (entry.seq, entry.id.as_str()));
            let dead = self.dead_among(entries)?;
            Ok(dead.is_empty().then_some(listing))
        });
        probed.transpose().or_else(|| {
            self.with_queue(key, |queue| {
                self.remove_dead(queue)?;
                Ok(self.listing(queue))
            })
        })
    }

    /// The queue, whose sessions all live.
    fn listing(&self, queue: &Locked<'_>) -> Listing {
        let log = queue.log();
        Listing {
            revision: revision(queue.moment(), log.live().iter().map(|(seq, _)| *seq)),
            entries: log.live().iter().map(|(seq, record)| listed(*seq, record)).collect(),
            value: log.value().map(|Written { version, data, .. }| Value {
                version: *version,
                data: Data::clone(data),
                writer: None,
            }),
            clock: self
                .clock
                .map(|clock| Clock { epoch: clock.epoch(), now: clock.at(BootInstant::now()) }),
            source: None,
        }
    }

    /// The revision that [`read`](Self::read) would return now.
    pub(super) fn revision(&self, key: &QueueKey) -> Option<Result<u64>> {
        Some(self.look_at(key)?.map(|seen| seen.revision))
    }

    /// The revision that [`read`](Self::read) would return now, and what it depends on.
    pub(super) fn look_at(&self, key: &QueueKey) -> Option<Result<Seen>> {
        let looked = self.with_queue(key, |queue| {
            let live = queue.log().live().iter();
            let entries = live.map(|(seq, record)| (*seq, Arc::clone(&record.id)));
            Ok((queue.moment(), entries.collect::<Vec<_>>()))
        })?;
        // Unlike `read`, does not remove the entries of dead sessions: each removal is a write to the file, and would wake those
        // who wait for a change of the file. As in `read`, sessions are probed after the short lock was let go: everybody who waits for
        // a change of the queue gets here at each change.
        let seen = looked.and_then(|(state, mut entries)| {
            let dead = self.dead_among(entries.iter().map(|(seq, id)| (*seq, &**id)))?;
            entries.retain(|(seq, _)| dead.binary_search(seq).is_err());
            let revision = revision(state, entries.iter().map(|(seq, _)| *seq));
            let by_session = entries.iter().map(|(_, id)| (session_of(id), id));
            let by_session: BTreeMap<_, _> = by_session.collect();
            let alive = by_session.into_values().map(Arc::clone).collect();
            Ok(Seen { revision, state, alive })
        });
        Some(seen)
    }

    pub(super) fn write(&self, queue: &mut Locked<'_>, write: &Write) -> Result<Option<u64>> {
        let version = self.compare_and_set(queue, write)?;
        if version.is_some() { self.persist(queue, version) } else { Ok(None) }
    }

    fn compare_and_set(&self, queue: &mut Locked<'_>, write: &Write) -> Result<Option<u64>> {
        let by = write.id;
        let version = queue.log().value().map(|value| value.version);
        if queue.log().value().is_some_and(|value| value.by == by) {
            return Ok(version);
        }
        if let Some(removed) = queue.log().removed().filter(|removed| removed.by == by) {
            return Ok(Some(removed.version));
        }
        if version != write.expected || self.unanswered.get(write).is_some() {
            return Ok(None);
        }
        if write.if_empty {
            self.remove_dead(queue)?;
            if !queue.log().live().is_empty() {
                return Ok(None);
            }
        }
        let number = next(queue, unix_micros());
        match (&write.data, version) {
            (Some(data), _) => {
                let value = Written { version: number, by, data: Data::clone(data) };
                queue.write(value, &write.beside)?;
                if version.is_none() {
                    self.unanswered.update(write, |known| *known = Some(()));
                }
                Ok(Some(number))
            }
            (None, Some(version)) => {
                queue.remove(number, Removed { by, version })?;
                Ok(Some(version))
            }
            (None, None) => Ok(None),
        }
    }

    pub(super) fn records(
        &self,
        key: &QueueKey,
        names: &[Arc<str>],
    ) -> Option<Result<Vec<Option<Data>>>> {
        self.with_queue(key, |queue| {
            Ok(names.iter().map(|name| queue.log().record(name).cloned()).collect())
        })
    }

    /// The names of the files of queues, as far as `is_so` returns true for them.
    pub(super) async fn files(&self, is_so: impl Fn(&str) -> bool + Send) -> Result<Vec<String>> {
        let mut files = Vec::new();
        let mut share = Share::begin();
        for name in self.open_files.with_room(|| self.queues.listing())? {
            files.extend(name?.filter(|name| is_so(name)));
            share.give_way().await;
        }
        Ok(files)
    }

    /// The queue of this kind whose file is `file`. `None`: this is not the file of a queue of this kind.
    pub(super) fn key(&self, kind: &'static str, file: &str) -> Result<Option<QueueKey>> {
        let encoded = file.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
        let Some(encoded) = encoded else { return Ok(None) };
        let name = match key::unescape(encoded) {
            // A name that was too long for a file name is stored in the file, and is read from there.
            None => None,
            Some(_) if encoded.contains('~') => {
                self.open_files.with_room(|| queue::stored_name(&self.queues, file))?
            }
            name => name,
        };
        let key = name.and_then(|name| QueueKey::new(kind, &name, usize::MAX).ok());
        Ok(key.filter(|key| queue::file_name(key) == file))
    }

    pub(super) fn has_value(&self, key: &QueueKey) -> Option<Result<bool>> {
        self.look(key, |queue| Ok(queue.log().value().is_some()))
    }

    /// Whether the queue has an entry whose session lives.
    pub(super) fn has_entry(&self, key: &QueueKey) -> Option<Result<bool>> {
        self.look(key, |queue| {
            for (_, record) in queue.log().live() {
                if self.is_alive(&record.id)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Calls `is_so` for a queue whose file may not exist; false if it does not exist. If the file was not open before, it is
    /// closed again.
    fn look(
        &self,
        key: &QueueKey,
        is_so: impl Fn(&Locked<'_>) -> Result<bool>,
    ) -> Option<Result<bool>> {
        if self.open_files.has(key) {
            return self.with_queue(key, |queue| is_so(queue));
        }
        let look = || {
            let open = || QueueFile::open_existing(&self.queues, key, &self.floor);
            let Some(mut file) = self.open_files.with_room(open)? else {
                return Ok(Some(false));
            };
            file.lock()?.map(|queue| is_so(&queue)).transpose()
        };
        look().transpose()
    }

    /// Whether the entry is in its queue.
    pub(super) fn is_present(&self, entry: &EntryRef) -> Option<Result<bool>> {
        self.with_queue(&entry.queue, |queue| Ok(queue.log().find(entry.id.as_str()).is_some()))
    }

    /// Whether the entry is in its queue, and its session lives, and it blocks a waiter of this mode.
    pub(super) fn blocks(&self, entry: &EntryRef, seq: u64, waiter: Mode) -> Option<Result<bool>> {
        let id = entry.id.as_str();
        self.with_queue(&entry.queue, |queue| match queue.log().get(seq, id) {
            Some(record) if record.mode.blocks(waiter) => self.is_alive(id),
            _ => Ok(false),
        })
    }

    /// The position of the entry with the number `seq`. If an entry of a dead session would block it, removes that entry.
    fn position_of(&self, queue: &mut Locked<'_>, seq: u64, mode: Mode) -> Result<Position> {
        loop {
            let blocker = queue.log().blocker(seq, mode);
            let Some((before, id)) = blocker.map(|(seq, record)| (seq, Arc::clone(&record.id)))
            else {
                return Ok(Position { seq, blocker: None });
            };
            if self.is_alive(&id)? {
                let blocker = Blocker { id: EntryId::from_store(id), seq: before };
                return Ok(Position { seq, blocker: Some(blocker) });
            }
            tracing::debug!(session = session_of(&id), "removing an entry of a dead session");
            self.remove_for_the_dead(queue, before);
        }
    }

    fn remove(&self, queue: &mut Locked<'_>, seq: u64) -> Result<()> {
        self.wake_blocked(queue, seq);
        queue.leave(seq)
    }

    /// Removes the entry of a dead session. If the disk is full, the entry may stay in the file. That is no error, because every
    /// process finds out again that the entry's session is dead.
    fn remove_for_the_dead(&self, queue: &mut Locked<'_>, seq: u64) {
        if let Err(error) = self.remove(queue, seq) {
            tracing::debug!(%error, "cannot remove an entry of a dead session");
        }
    }

    /// Removes the entries whose sessions are dead.
    fn remove_dead(&self, queue: &mut Locked<'_>) -> Result<()> {
        self.dead(queue)?.into_iter().for_each(|seq| self.remove_for_the_dead(queue, seq));
        Ok(())
    }

    /// The numbers of the entries whose sessions are dead, in order.
    pub(super) fn dead(&self, queue: &Locked<'_>) -> Result<Vec<u64>> {
        self.dead_among(queue.log().live().iter().map(|(seq, record)| (*seq, &*record.id)))
    }

    /// Those of these entries, each with its number and its id, whose sessions are dead. Checks each session only once.
    fn dead_among<'a>(&self, entries: impl Iterator<Item = (u64, &'a str)>) -> Result<Vec<u64>> {
        let mut sessions = HashMap::new();
        let mut dead = Vec::new();
        for (seq, id) in entries {
            let session = session_of(id);
            let is_alive = match sessions.get(session) {
                Some(known) => *known,
                None => self.is_alive(id)?,
            };
            sessions.insert(session, is_alive);
            if !is_alive {
                dead.push(seq);
            }
        }
        Ok(dead)
    }

    /// Returns `answer`. With `durable`, waits first until the disk has the changes.
    fn persist<T>(&self, queue: &Locked<'_>, answer: T) -> Result<T> {
        if self.durable {
            queue.sync().map_err(in_doubt)?;
        }
        Ok(answer)
    }

    /// Runs `step` under the queue's short lock, on the file to which the queue's name leads at that moment.
    pub(super) fn with_queue<T>(
        &self,
        key: &QueueKey,
        step: impl FnOnce(&mut Locked<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        self.with_open_queue(key, true, step)
    }

    /// Does what [`with_queue`](Self::with_queue) does. But without `in_place`, it runs `step` on the file that is open, whether or
    /// not the queue's name still leads to this file.
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
            let mut queue = self.lock_now(&shared)?;
            let mut locked = match queue.lock() {
                Ok(Some(locked)) => locked,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            let in_place = in_place && !sings(Canary::UnlinkOnRelease);
            match if in_place { locked.is_in_place(&self.queues) } else { Ok(true) } {
                Ok(true) => return Some(step(&mut locked)),
                Ok(false) => drop(locked),
                Err(error) => return Some(Err(error)),
            }
            // Somebody has removed or replaced the file. So the next round opens the file to which the name leads now.
            self.open_files.forget(key, &shared);
        }
    }

    /// Locks the queue's open file for this thread. `None`: another thread has it locked. This happens only with `durable`, where
    /// that thread may wait for a slow disk.
    fn lock_now<'a>(&self, queue: &'a Mutex<QueueFile>) -> Option<MutexGuard<'a, QueueFile>> {
        if !self.durable {
            return Some(lock(queue));
        }
        for _ in 0..TRIES {
            match queue.try_lock() {
                Ok(queue) => return Some(queue),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
        None
    }

    pub(super) fn queue(&self, key: &QueueKey) -> Result<Arc<Mutex<QueueFile>>> {
        let open = || QueueFile::open(&self.queues, key, self.durable, &self.floor);
        self.open_files.get(key, open)
    }
}

fn lock(queue: &Mutex<QueueFile>) -> MutexGuard<'_, QueueFile> {
    // If a thread panicked while it had this mutex, the drop of `Locked` has unlocked the file, and has made the next step read the
    // whole file again. So it does not matter here that the mutex is poisoned.
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The number that the next entry or value of the queue gets.
fn next(queue: &Locked<'_>, now_us: u64) -> u64 {
    number_after(queue.log().last, now_us)
}

/// A hash of the state of the queue. Two states that differ have different hashes.
///
/// The death of a session writes nothing to the log. So the hash also covers the numbers of those entries whose sessions live.
fn revision(state: LogState, alive: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    alive.for_each(|seq| seq.hash(&mut hasher));
    hasher.finish()
}

fn listed(seq: u64, record: &Record) -> Entry {
    Entry {
        id: EntryId::from_store(Arc::clone(&record.id)),
        seq,
        member: key::unescape(&record.member).unwrap_or_default().into(),
        since: UNIX_EPOCH.checked_add(Duration::from_millis(record.since_ms)),
        label: record.label.clone(),
        mode: record.mode,
        data: log::without_room(&record.data),
    }
}

/// Marks the effect of an error as unknown: an earlier part of the change may have been written, and is not undone.
fn in_doubt(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}
