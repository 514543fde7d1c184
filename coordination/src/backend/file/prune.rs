//! Removes the files of unused queues when the user asks for that, in such a way that numbers go on rising.
//!
//! A queue's last number is in its file. So before the file is removed, the *floor* is raised to at least that number. The floor is
//! a number in a file next to the files of the queues, and the numbers of every new file begin above it. Another process may still
//! have the removed file open. When that process takes the file's short lock, it finds that the queue's name does not lead to this
//! file any more, just as after a removal by an operator. Then that process opens the new file.

use std::time::Duration;

use super::floor::Raising;
use super::queue::{self, QueueFile};
use super::store::Store;
use crate::error::{ErrorKind, Result};

impl Store {
    /// Removes a queue's file if the queue has neither a live entry nor a value, and the file was not written to for the time
    /// `unused`. Returns whether the file was removed.
    pub(super) fn prune(
        &self,
        file: &str,
        unused: Duration,
        floor: &mut Raising<'_>,
    ) -> Result<bool> {
        match self.try_to_prune(file, unused, floor) {
            Err(error) if is_of_this_file(error.kind()) => {
                tracing::debug!(%error, "left alone");
                Ok(false)
            }
            pruned => pruned,
        }
    }

    fn try_to_prune(&self, file: &str, unused: Duration, floor: &mut Raising<'_>) -> Result<bool> {
        if !self.queues.is_unused(file, unused)? {
            return Ok(false);
        }
        let Some(name) = queue::stored_name(&self.queues, file)? else { return Ok(false) };
        let Some(mut opened) = QueueFile::open_named(&self.queues, file, &name, &self.floor)?
        else {
            return Ok(false);
        };
        // If another process has the short lock, the queue is in use, and the file stays.
        let Some(queue) = opened.lock()? else { return Ok(false) };
        let log = queue.log();
        let is_empty = log.value().is_none() && log.live().len() == self.dead(&queue)?.len();
        if !is_empty || !queue.is_in_place(&self.queues)? {
            return Ok(false);
        }
        floor.to(log.last, &self.queues, self.durable)?;
        // This process still has the short lock, so no process has entered an entry since the check above.
        self.queues.remove(file)?;
        Ok(true)
    }
}

/// Whether an error of this kind is about this one file only, because it is damaged or not a queue's file. Then the other files are
/// still pruned.
fn is_of_this_file(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::Collision | ErrorKind::Permission)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Mutex, PoisonError};
    use std::thread;
    use std::time::Instant;

    use tempfile::TempDir;

    use super::super::header::{self, HEADER};
    use super::super::log::Record;
    use super::super::tests::{die, file, key, leave, new_entry, open, store, store_if};
    use super::*;
    use crate::backend::{Mode, NewEntry, Write};
    use crate::env::unix_micros;

    fn enter(store: &Store, entry: &NewEntry) -> u64 {
        loop {
            let queue = &entry.entry_ref.queue;
            if let Some(done) = store.with_queue(queue, |queue| store.enter(queue, entry)) {
                let position = done.expect("the disk works");
                assert_eq!(position.blocker, None);
                return position.seq;
            }
        }
    }

    fn prune(store: &Store, unused: Duration) -> Vec<String> {
        // If another test forks a child process, the child may keep this lock for a moment.
        let locked = || store.floor.lock(&store.queues).expect("the disk works");
        let mut floor = std::iter::repeat_with(locked).flatten().next().expect("it has no end");
        let mut files = store.queues.names().expect("it is there");
        files.retain(|file| store.prune(file, unused, &mut floor).expect("the disk works"));
        files.sort_unstable();
        files
    }

    #[test]
    fn what_is_held_or_has_a_value_or_was_used_just_now_stays() {
        let directory = TempDir::new().expect("a directory");
        let (store, dying) =
            (store(directory.path()), super::super::tests::store(directory.path()));
        let session = open(&store);
        for name in ["held", "left", &"long".repeat(100)] {
            let entry = new_entry(session, &key(name));
            let seq = enter(&store, &entry);
            if name != "held" {
                leave(&store, &entry, seq);
            }
        }
        let write = Write::new(&key("valued"), None, Some("v".into()));
        let written = store.with_queue(&key("valued"), |queue| store.write(queue, &write));
        assert!(written.expect("nobody has it").expect("the disk works").is_some());
        enter(&dying, &new_entry(open(&dying), &key("dead")));
        die(dying);
        for name in ["test.damaged", "test.foreign"] {
            let text = if name == "test.damaged" { "x".repeat(1024) } else { "note".into() };
            fs::write(directory.path().join("test/queues").join(name), text).expect("it is ours");
        }
        assert_eq!(prune(&store, Duration::from_secs(60)), [""; 0]);
        let long = queue::file_name(&key(&"long".repeat(100)));
        assert_eq!(prune(&store, Duration::ZERO), ["test.dead", &*long, "test.left"]);
        assert!(file(&directory, &key("held")).exists());
        assert!(file(&directory, &key("valued")).exists());
        assert_eq!(prune(&store, Duration::ZERO), [""; 0]);
    }

    /// Here the queue's last number is above the clock's time, as it would be after the clock was set back.
    #[test]
    fn numbers_go_on_rising() {
        for durable in [false, true] {
            let directory = TempDir::new().expect("a directory");
            let store = store_if(directory.path(), durable);
            let (session, queue) = (open(&store), key("a"));
            let later = unix_micros() + 1_000_000_000;
            let entry = new_entry(session, &queue);
            let entered = store.with_queue(&queue, |queue| {
                let (id, member) = (entry.entry_ref.id.shared(), "m".into());
                let mode = Mode::Exclusive;
                let data = "".into();
                queue.enter(later, Record { id, since_ms: 0, member, label: None, mode, data })
            });
            entered.expect("nobody has it").expect("the disk works");
            leave(&store, &entry, later);
            assert_eq!(prune(&store, Duration::ZERO), ["test.a"]);
            for store in [&store, &super::super::tests::store(directory.path())] {
                let next = new_entry(open(store), &queue);
                let seq = enter(store, &next);
                assert!(seq > later, "{seq} after {later}");
                leave(store, &next, seq);
                assert_eq!(prune(store, Duration::ZERO), ["test.a"]);
            }
        }
    }

    /// A process that creates the new file may be killed before it writes the header. Even then, the next process must begin its
    /// numbers above the floor.
    #[test]
    fn numbers_go_on_rising_in_a_file_without_a_header() {
        for reserved in [0, 4096] {
            let directory = TempDir::new().expect("a directory");
            let (queue, later) = (key("a"), unix_micros() + 1_000_000_000);
            let before = store(directory.path());
            let mut raising = before.floor.lock(&before.queues).expect("the disk works");
            let floor = raising.as_mut().expect("nobody else prunes");
            floor.to(later, &before.queues, false).expect("the disk works");
            drop(raising);
            let mut text = vec![0; HEADER];
            text.extend(header::name_line("a").into_bytes());
            text.resize(text.len() + reserved, 0);
            fs::write(file(&directory, &queue), text).expect("it is ours");
            let store = store(directory.path());
            let seq = enter(&store, &new_entry(open(&store), &queue));
            assert!(seq > later, "{seq} after {later}");
        }
    }

    #[test]
    fn nobody_loses_by_it() {
        const WHILE: Duration = Duration::from_secs(1);
        let directory = TempDir::new().expect("a directory");
        let last = [const { Mutex::new(0) }; 2];
        let removed = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let store = store(directory.path());
                    let (session, begun) = (open(&store), Instant::now());
                    while begun.elapsed() < WHILE {
                        for (name, last) in ["a", "b"].iter().zip(&last) {
                            let entry = new_entry(session, &key(name));
                            let Some(entered) = store.with_queue(&entry.entry_ref.queue, |queue| {
                                store.enter(queue, &entry)
                            }) else {
                                continue;
                            };
                            let position = entered.expect("the disk works");
                            if position.blocker.is_none() {
                                let mut last = last.try_lock().expect("nobody else has the turn");
                                assert!(position.seq > *last, "{position:?} after {last}");
                                *last = position.seq;
                            }
                            leave(&store, &entry, position.seq);
                        }
                    }
                });
            }
            let store = store(directory.path());
            let (mut removed, begun) = (0, Instant::now());
            while begun.elapsed() < WHILE {
                removed += prune(&store, Duration::ZERO).len();
            }
            removed
        });
        assert!(removed > 0, "nothing was ever unused");
        let numbers = last.map(|last| last.into_inner().unwrap_or_else(PoisonError::into_inner));
        assert!(numbers.iter().all(|number| *number > 0));
    }
}
