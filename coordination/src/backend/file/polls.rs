//! What waiters ask while the system grants no notifications.
//!
//! A poll asks first whether the queue's file has changed, which takes one system call. Only if the file has changed, or may have, a
//! poll opens, locks and reads it. The death of a session changes no file, so each poll probes the sessions that matter to the waiter:
//! but never more than [`PROBED`] of them, since in a large group each process watches all the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::directory::Moment;
use super::queue;
use super::store::{Seen, Store};
use crate::backend::{EntryRef, Mode};
use crate::error::Result;
use crate::key::QueueKey;

/// The pause between two polls.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// How many sessions a poll of a queue probes. If the queue has entries of more sessions, polls probe them in turn.
const PROBED: usize = 8;

/// What a waiter asks at each poll.
pub(super) trait Poll {
    /// Whether the wait is over. `None`: another process has the queue's short lock, so that the caller has to ask again.
    fn look(&mut self) -> Option<Result<bool>>;
}

/// Waits until an entry blocks the waiter no more.
pub(super) struct PollOfEntry<'a> {
    store: &'a Store,
    entry: &'a EntryRef,
    seq: u64,
    waiter: Mode,
    file: File<'a>,
}

/// Waits until a queue has another revision.
pub(super) struct PollOfQueue<'a> {
    store: &'a Store,
    queue: &'a QueueKey,
    revision: u64,
    file: File<'a>,
    /// What the first poll has seen, since when nothing has changed.
    seen: Option<Seen>,
    /// The place in `seen.alive` from which on the next poll probes.
    next: usize,
}

/// A queue's file, as polls have found it.
struct File<'a> {
    store: &'a Store,
    queue: &'a QueueKey,
    recheck: Duration,
    /// When the file was last read, and the state that it has had since then. `None`: the file has to be read.
    read: Option<(Instant, Moment)>,
}

impl<'a> PollOfEntry<'a> {
    pub(super) fn new(
        store: &'a Store,
        entry: &'a EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Self {
        Self { store, entry, seq, waiter, file: File::new(store, &entry.queue, recheck) }
    }
}

impl Poll for PollOfEntry<'_> {
    fn look(&mut self) -> Option<Result<bool>> {
        let Self { store, entry, seq, waiter, file } = self;
        let blocks = file.unless_unchanged(
            || store.blocks(entry, *seq, *waiter),
            // The file is as it was when the entry was found to block the waiter.
            || store.is_alive(entry.id.as_str()),
        )?;
        Some(blocks.map(|blocks| !blocks))
    }
}

impl<'a> PollOfQueue<'a> {
    pub(super) fn new(
        store: &'a Store,
        queue: &'a QueueKey,
        revision: u64,
        recheck: Duration,
    ) -> Self {
        let file = File::new(store, queue, recheck);
        Self { store, queue, revision, file, seen: None, next: 0 }
    }
}

impl Poll for PollOfQueue<'_> {
    fn look(&mut self) -> Option<Result<bool>> {
        let Self { store, queue, revision, file, seen, next } = self;
        let Some(seen) = seen else {
            // All sessions are probed once for each change of the queue.
            return Some(
                store.look_at(queue)?.map(|first| seen.insert(first).revision != *revision),
            );
        };
        let is_same = file.unless_unchanged(
            || store.with_queue(queue, |queue| Ok(queue.moment() == seen.state)),
            || Ok(true),
        )?;
        let has_changed = || Ok(!is_same? || is_one_dead(store, &seen.alive, next)?);
        Some(has_changed())
    }
}

/// Probes [`PROBED`] of these sessions, from the place `next` on. Whether one of them is dead.
fn is_one_dead(store: &Store, sessions: &[Arc<str>], next: &mut usize) -> Result<bool> {
    let first = std::mem::replace(next, (*next + PROBED) % sessions.len().max(1));
    for entry in sessions.iter().cycle().skip(first).take(PROBED.min(sessions.len())) {
        if !store.is_alive(entry)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl<'a> File<'a> {
    fn new(store: &'a Store, queue: &'a QueueKey, recheck: Duration) -> Self {
        Self { store, queue, recheck, read: None }
    }

    /// Whether something is still so: asks `read`, which reads the file; but if the file is surely the same as when `read` last
    /// returned true, less than `recheck` ago, asks `unread`.
    fn unless_unchanged(
        &mut self,
        read: impl FnOnce() -> Option<Result<bool>>,
        unread: impl FnOnce() -> Result<bool>,
    ) -> Option<Result<bool>> {
        // The file's times are read before the file. If the file is changed in between, the next poll finds other times.
        let glimpse = match self.store.queues.glimpse(&queue::file_name(self.queue)) {
            Ok(glimpse) => glimpse,
            Err(error) => return Some(Err(error)),
        };
        // The times of a file on another host may be old, and are by that host's clock.
        let glimpse = glimpse.filter(|_| !self.store.is_on_network);
        if let (Some((at, moment)), Some(glimpse)) = (self.read, glimpse)
            && moment == glimpse.moment
            && at.elapsed() < self.recheck
        {
            return Some(unread());
        }
        let now = Instant::now();
        let is_so = read()?;
        let settled = glimpse.filter(|glimpse| glimpse.is_settled && matches!(is_so, Ok(true)));
        self.read = settled.map(|glimpse| (now, glimpse.moment));
        Some(is_so)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;
    use std::thread::sleep;

    use tempfile::TempDir;

    use super::super::config::Config;
    use super::super::file_store::FileStore;
    use super::super::open_files::OpenFiles;
    use super::super::tests::{enter, key, new_entry, open, read, store};
    use super::*;
    use crate::backend::{SessionId, Watching};

    const MEMBERS: usize = 50;
    const LONG: Duration = Duration::from_secs(3_600);
    const SOON: Duration = Duration::from_secs(30);

    /// A queue with an entry of each of many sessions of another process.
    struct Group {
        directory: TempDir,
        others: Store,
        queue: QueueKey,
        members: Vec<SessionId>,
    }

    impl Group {
        fn new() -> Self {
            let directory = TempDir::new().expect("a directory");
            let (others, queue) = (store(directory.path()), key("group"));
            let members: Vec<_> = (0..MEMBERS).map(|_| open(&others)).collect();
            for session in &members {
                enter(&others, &new_entry(*session, &queue));
            }
            Self { directory, others, queue, members }
        }

        fn watcher(&self) -> Store {
            store(self.directory.path())
        }
    }

    fn look(poll: &mut impl Poll) -> bool {
        poll.look().expect("nobody has the short lock").expect("the disk works")
    }

    /// In a group that watches itself, there are as many watchers as members. If each of them probed all members at each poll, a
    /// hundred processes would make a million system calls a second.
    #[tokio::test]
    async fn a_watcher_probes_few_sessions() {
        let group = Group::new();
        let watcher = FileStore {
            store: Mutex::new(Arc::new(group.watcher())),
            config: Config {
                directory: group.directory.path().into(),
                durable: false,
                network_allowed: true,
                is_for_group: false,
            },
            namespace: "test".into(),
            lines: Mutex::default(),
        };
        let before = read(&watcher.store(), &group.queue).revision;
        let probes = || watcher.store().sessions.probes.load(Ordering::Relaxed);
        let at_first = probes();
        assert_eq!(at_first, MEMBERS, "each session is probed once");
        let second = Duration::from_secs(1);
        watcher.changed(&group.queue, before, second).await.expect("the disk works");
        assert!(probes() - at_first < 5 * MEMBERS, "{} probes in a second", probes() - at_first);
    }

    /// As many polls as it takes to probe all sessions see each death, and one poll sees a change of the file.
    #[test]
    fn polls_see_each_death_and_each_change() {
        let group = Group::new();
        let watcher = group.watcher();
        for dead in [0, MEMBERS / 2, MEMBERS - 2] {
            let before = read(&watcher, &group.queue).revision;
            let mut poll = PollOfQueue::new(&watcher, &group.queue, before, LONG);
            for _ in 0..MEMBERS {
                assert!(!look(&mut poll), "nothing has changed");
            }
            group.others.sessions.close(group.members[dead]).expect("it is ours");
            let polls = MEMBERS.div_ceil(PROBED);
            assert!((0..polls).any(|_| look(&mut poll)), "{dead} is not seen");
        }
        let before = read(&watcher, &group.queue).revision;
        let mut poll = PollOfQueue::new(&watcher, &group.queue, before, LONG);
        assert!(!look(&mut poll));
        enter(&group.others, &new_entry(group.members[1], &group.queue));
        assert!(look(&mut poll));
        let mut poll = PollOfQueue::new(&watcher, &group.queue, before, LONG);
        assert!(look(&mut poll), "it was another one from the beginning");
    }

    /// A process with few descriptors keeps few files open. While a queue's file is unchanged, a waiter needs none of it.
    #[test]
    fn an_unchanged_file_is_not_opened_again() {
        let directory = TempDir::new().expect("a directory");
        let holder = store(directory.path());
        let mut waiter = store(directory.path());
        waiter.open_files = OpenFiles::at_most(1);
        let session = open(&holder);
        let held = ["a", "b", "c"].map(|name| new_entry(session, &key(name)));
        let seqs = held.each_ref().map(|entry| enter(&holder, entry));
        let poll = |(entry, seq)| PollOfEntry::new(&waiter, entry, seq, Mode::Exclusive, LONG);
        let mut polls: Vec<_> =
            held.iter().map(|entry| &entry.entry_ref).zip(seqs).map(poll).collect();
        let mut opened_in = |rounds: usize| {
            let before = waiter.open_files.opened.load(Ordering::Relaxed);
            for _ in 0..rounds {
                assert!(!polls.iter_mut().any(look), "they are held");
            }
            waiter.open_files.opened.load(Ordering::Relaxed) - before
        };
        // A file that was changed just now is opened: its next change could have the same time.
        assert!(opened_in(1) >= 2);
        let begun = Instant::now();
        while opened_in(1) > 0 {
            assert!(begun.elapsed() < SOON, "they were not changed for long");
            sleep(POLL);
        }
        assert_eq!(opened_in(20), 0);
        let left = holder.leave(&held[1].entry_ref, Some(seqs[1]));
        left.expect("nobody has the short lock").expect("the disk works");
        assert_eq!(polls.iter_mut().map(look).collect::<Vec<_>>(), [false, true, false]);
        holder.sessions.close(session).expect("it is ours");
        assert!(polls.iter_mut().all(look), "their session is dead");
    }
}
