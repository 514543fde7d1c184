//! Tests of calls on a durable store that are given up before their change of the queue's file has begun, or before the change is
//! done. The tests that all stores share make a call late by delaying its network connection, which this store does not have.

use std::fs::File;
use std::future::Future;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::config::Config;
use super::file_store::FileStore;
use super::tests::{file, key, new_entry, open, store_if};
use crate::Coordinator;
use crate::backend::{Entries, Listing, NewEntry, SessionId, Sessions, Values, Write};
use crate::error::{ErrorKind, Result};
use crate::key::QueueKey;

/// How long a test waits for a call that cannot get an answer, before it gives the call up.
const WHILE: Duration = Duration::from_millis(10);
/// How many threads for blocking work the runtime has, in a test that has to use all of them up.
const THREADS: usize = 8;
/// How often a test is repeated if the case that it tests occurs only by chance.
const ROUNDS: usize = 100;
/// How long a test waits at most for something that must happen.
const SOON: Duration = Duration::from_secs(5);

/// A durable store, with two runtimes. The runtime `crowded` has one thread for blocking work, which is busy until `free` sends or
/// is dropped: until then no change that is started on this runtime can begin.
struct Crowded {
    /// Declared before the runtimes, so that it is dropped before them. The drop of a runtime waits for the runtime's threads, and
    /// the thread of `crowded` waits until `free` sends or is dropped.
    free: mpsc::Sender<()>,
    crowded: Runtime,
    runtime: Runtime,
    store: FileStore,
    session: SessionId,
    queue: QueueKey,
    directory: TempDir,
}

impl Crowded {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let config = Config {
            directory: directory.path().into(),
            durable: true,
            network_allowed: true,
            is_for_group: false,
        };
        let store = store_if(directory.path(), true);
        let session = open(&store);
        let crowded = runtime(1);
        let (free, freed) = mpsc::channel::<()>();
        crowded.spawn_blocking(move || freed.recv());
        Self {
            free,
            crowded,
            runtime: runtime(2),
            store: FileStore {
                config,
                namespace: "test".into(),
                store: Mutex::new(Arc::new(store)),
                lines: Mutex::default(),
            },
            session,
            queue: key("a"),
            directory,
        }
    }

    fn entry(&self) -> NewEntry {
        new_entry(self.session, &self.queue)
    }

    fn call<T>(&self, call: impl Future<Output = Result<T>>) -> T {
        self.runtime.block_on(call).expect("the disk works")
    }

    /// Makes a call on `crowded`, where its change of the queue finds no free thread and cannot begin. Then gives the call up.
    fn keep_back<T>(&self, call: impl Future<Output = Result<T>>) {
        let answer = self.crowded.block_on(async { timeout(WHILE, call).await });
        assert!(answer.is_err(), "it was answered, though it cannot have begun");
    }

    /// Lets the changes begin that were started on `crowded`, waits until they are done, and then returns the queue's listing.
    fn arrive(self) -> Listing {
        drop(self.free);
        let last = self.crowded.spawn_blocking(|| ());
        self.crowded.block_on(last).expect("no panic");
        self.runtime.block_on(self.store.read(&self.queue)).expect("the disk works")
    }

    /// Takes the queue's short lock, as another process would take it.
    fn lock(&self) -> File {
        let queue = File::open(file(&self.directory, &self.queue)).expect("it is there");
        flock(&queue, FlockOperation::LockExclusive).expect("somebody lets go");
        queue
    }
}

fn runtime(threads: usize) -> Runtime {
    let mut runtime = Builder::new_current_thread();
    runtime.enable_time().max_blocking_threads(threads).build().expect("a runtime")
}

#[test]
fn late_enter_after_leave() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    crowded.keep_back(crowded.store.enter(&entry));
    crowded.call(crowded.store.leave(&entry.entry_ref, None));
    assert_eq!(crowded.arrive().entries, [], "the entry that was left has come back");
}

#[test]
fn late_enter_after_it_was_entered_and_left() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    crowded.keep_back(crowded.store.enter(&entry));
    let position = crowded.call(crowded.store.enter(&entry));
    crowded.call(crowded.store.leave(&entry.entry_ref, Some(position.seq)));
    assert_eq!(crowded.arrive().entries, [], "the entry that was left has come back");
}

#[test]
fn late_update_after_update() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    let seq = crowded.call(crowded.store.enter(&entry)).seq;
    let old = NewEntry { data: "old".into(), ..entry.clone() };
    let new = NewEntry { data: "new".into(), ..entry };
    crowded.keep_back(crowded.store.update(&old, seq));
    assert!(crowded.call(crowded.store.update(&new, seq)));
    assert_eq!(crowded.arrive().entry(seq).map(|entry| &*entry.data), Some("new"));
}

#[test]
fn late_write_after_a_removal() {
    let crowded = Crowded::new();
    let create = Write::new(&crowded.queue, None, Some("1".into()));
    crowded.keep_back(crowded.store.write(&create));
    let version = crowded.call(crowded.store.write(&create));
    crowded.call(crowded.store.write(&Write::new(&crowded.queue, version, None)));
    assert_eq!(crowded.arrive().value, None, "the value that was removed has come back");
}

#[test]
fn session_end_refuses_an_enter_that_is_late() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    let mut entering = Box::pin(crowded.store.enter(&entry));
    crowded.keep_back(entering.as_mut());
    crowded.call(crowded.store.close(crowded.session));
    crowded.free.send(()).expect("it listens");
    let answer = crowded.crowded.block_on(entering);
    assert_eq!(answer.expect_err("its session is over").kind(), ErrorKind::Lost);
    assert_eq!(crowded.arrive().entries, []);
}

/// F-70: if no thread can be started, the session's own thread makes the change of the queue.
#[cfg(coordination_internals)]
#[test]
fn f70_a_write_goes_on_while_no_thread_can_be_started() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    crate::panics::arm("thread");
    let position = crowded.call(crowded.store.enter(&entry));
    assert_eq!(crate::panics::armed(), [""; 0], "it needed no thread");
    let listing = crowded.call(crowded.store.read(&crowded.queue));
    assert!(listing.entry(position.seq).is_some(), "{listing:?}");
    crowded.call(crowded.store.leave(&entry.entry_ref, Some(position.seq)));
    assert_eq!(crowded.arrive().entries, []);
}

#[test]
fn late_enter_while_the_queue_is_busy() {
    let crowded = Crowded::new();
    crowded.call(crowded.store.read(&crowded.queue));
    for _ in 0..ROUNDS {
        let (entry, lock) = (crowded.entry(), crowded.lock());
        crowded.runtime.block_on(async {
            let answer = timeout(Duration::ZERO, crowded.store.enter(&entry)).await;
            assert!(answer.is_err(), "it was answered, though the queue is locked");
        });
        // The call is given up at a random moment: while it waits to try for the lock again, or while it tries.
        std::thread::sleep(Duration::from_micros(rand::random_range(0..2_000)));
        drop(lock);
        crowded.call(crowded.store.leave(&entry.entry_ref, None));
    }
    std::thread::sleep(WHILE);
    let listing = crowded.call(crowded.store.read(&crowded.queue));
    assert_eq!(listing.entries, [], "an entry that was left has come back");
}

#[test]
fn late_enter_within_its_step() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    let ((begin, begun), (give_up, given_up)) = (mpsc::channel(), mpsc::channel::<()>());
    let (new, given_up) = (entry.clone(), Mutex::new(given_up));
    let entering = crowded.store.change("enter", &crowded.queue, move |store, queue| {
        begin.send(()).expect("it is waited for");
        // However long the caller stands still, it has given the call up before the step is done.
        let given_up = given_up.lock().expect("no panic");
        given_up.recv_timeout(SOON).expect("it is given up");
        std::thread::sleep(5 * WHILE);
        store.enter(queue, &new)
    });
    crowded.runtime.block_on(async {
        let mut entering = Box::pin(entering);
        assert!(timeout(Duration::ZERO, entering.as_mut()).await.is_err(), "it is not done");
        begun.recv_timeout(SOON).expect("it begins");
    });
    give_up.send(()).expect("the step goes on");
    crowded.call(crowded.store.leave(&entry.entry_ref, None));
    assert_eq!(crowded.arrive().entries, [], "the entry that was left has come back");
}

/// Once a call was given up, it occupies no thread for blocking work any more, even if the queue stays locked.
#[test]
fn a_call_that_was_given_up_does_not_try_for_ever() {
    let crowded = Crowded::new();
    crowded.call(crowded.store.read(&crowded.queue));
    let _lock = crowded.lock();
    crowded.runtime.block_on(async {
        for _ in 0..3 {
            let answer = timeout(WHILE, crowded.store.enter(&crowded.entry())).await;
            assert!(answer.is_err(), "it was answered, though the queue is locked");
        }
        let next = tokio::task::spawn_blocking(|| ());
        timeout(SOON, next).await.expect("a thread is free").expect("no panic");
    });
}

/// One thread keeps a queue locked, as it would if the disk took seconds. Neither the session's thread nor a thread that drops a
/// guard waits until the queue is unlocked: their calls return at once.
#[test]
fn nobody_waits_for_the_disk_of_others() {
    let crowded = Crowded::new();
    let entry = crowded.entry();
    crowded.call(crowded.store.enter(&entry));
    let store = crowded.store.store();
    let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let listening = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _listening = listening.enter();
    let (store, queue) = (&store, &crowded.queue);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            store.with_queue(queue, |_| {
                begin.send(()).expect("it is waited for");
                ended.recv_timeout(SOON).expect("nobody waits for this");
                Ok(())
            })
        });
        begun.recv().expect("it begins");
        assert!(store.leave(&entry.entry_ref, None).is_none(), "the queue is not to be had");
        assert!(store.listen(queue, None, None).is_ok());
        end.send(()).expect("the queue is still locked");
    });
}

/// While a queue is locked, only one task at a time tries for its lock, so that the session's thread is free for other work.
#[test]
fn many_that_leave_take_turns() {
    const WHILE: Duration = Duration::from_secs(1);
    let crowded = Crowded::new();
    crowded.call(crowded.store.read(&crowded.queue));
    let _lock = crowded.lock();
    let store = Arc::new(crowded.store);
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it goes on");
    let before = used();
    crowded.runtime.block_on(async {
        let mut leaving = tokio::task::JoinSet::new();
        for _ in 0..1_000 {
            let (store, entry_ref) =
                (Arc::clone(&store), new_entry(crowded.session, &crowded.queue).entry_ref);
            leaving.spawn(async move { store.leave(&entry_ref, None).await });
        }
        let answer = timeout(WHILE, leaving.join_next()).await;
        assert!(answer.is_err(), "it was answered, though the queue is locked");
    });
    let used = used().saturating_sub(before);
    assert!(used < WHILE / 2, "{used:?} of {WHILE:?}");
}

/// Acquires of a locked queue that were given up occupy no threads for blocking work, because other queues need these threads.
#[test]
fn a_busy_queue_leaves_threads_to_others() {
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}?durable=true", directory.path().display());
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().expect("a runtime");
    let outcome = runtime.block_on(async {
        // The session's calls use this runtime's threads for blocking work, of which there are few.
        let settings = Coordinator::builder().namespace("test").heartbeat_on_current_runtime(true);
        let coordinator = settings.connect(&url).await?;
        let (busy, free) = (coordinator.lock("a")?, coordinator.lock("b")?);
        busy.acquire(None).await?.release().await?;
        let key = QueueKey::new("lock", "a", usize::MAX)?;
        let queue = File::open(file(&directory, &key)).expect("it is there");
        flock(&queue, FlockOperation::LockExclusive).expect("somebody lets go");
        // These are more calls than there are threads for blocking work, but not so many that they alone keep the machine busy.
        let mut given_up = tokio::task::JoinSet::new();
        for _ in 0..5 * THREADS {
            let busy = busy.clone();
            given_up.spawn(async move { timeout(WHILE, busy.acquire(None)).await.is_err() });
        }
        assert!(given_up.join_all().await.into_iter().all(|given_up| given_up));
        // If the calls that were given up still occupied the threads, this acquire would wait until the other queue is unlocked.
        free.acquire(Some(SOON)).await?.release().await?;
        drop(queue);
        coordinator.stop().await
    });
    outcome.expect("nothing else fails");
}
