//! Tests of the state of a directory after all kinds of changes. This state is read by a process that has read the files all along,
//! and by a new process.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::config::Config;
use super::liveness::Opened;
use super::queue::Locked;
use super::store::Store;
#[cfg(coordination_internals)]
use super::system;
use crate::backend::registry::Target;
use crate::backend::{
    self, Data, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Room, SessionId,
    Write,
};
use crate::error::{ErrorKind, Result};
use crate::key::QueueKey;

/// The name of the environment variable that tells the child process of [`a_killed_writer_leaves_a_whole_value`] which directory to
/// use.
const CHILD: &str = "COORDINATION_TEST_CHILD";

/// With this environment variable the store does without what only Linux has.
#[cfg(coordination_internals)]
const PLAIN: &str = "COORDINATION_TEST_PLAIN";

/// The longest that a queue's file may become if its live lines need at most 64 KiB.
const LONGEST: u64 = 2 * 1024 * 1024;

pub(super) fn store(directory: &Path) -> Store {
    store_if(directory, false)
}

pub(super) fn store_if(directory: &Path, durable: bool) -> Store {
    let config = Config {
        directory: directory.to_owned(),
        durable,
        network_allowed: true,
        is_for_group: false,
    };
    Store::open(&config, "test").expect("the directory is ours")
}

/// Ends the sessions of this store as the death of their process ends them. Closing their files would not be enough: if another
/// test forks a child process at this moment, the child has copies of the descriptors until it runs its program.
pub(super) fn die(store: Store) {
    store.sessions.die();
}

pub(super) fn open(store: &Store) -> SessionId {
    let id = SessionId::random();
    let member = id.to_string().into();
    let new = NewSession { id, member, ttl: Duration::ZERO };
    while !matches!(store.open_session(&new).expect("a new session"), Opened::Yes) {
        std::thread::yield_now();
    }
    id
}

#[test]
fn a_session_is_not_opened_in_a_directory_that_was_removed_meanwhile() {
    let directory = TempDir::new().expect("the temporary directory is writable");
    let store = store(&directory.path().join("locks"));
    for folder in ["members", "sessions"] {
        let (done, outcome) = std::sync::mpsc::channel();
        fs::remove_dir(directory.path().join("locks/test").join(folder)).expect("it is empty");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let id = SessionId::random();
                let new = NewSession { id, member: "m".into(), ttl: Duration::ZERO };
                done.send(store.sessions.open(&new).map(|_| ()))
            });
            let outcome = outcome.recv_timeout(Duration::from_secs(10)).expect("it ends");
            assert_eq!(outcome.expect_err("there is no place").kind(), ErrorKind::Unavailable);
        });
    }
}

pub(super) fn key(name: &str) -> QueueKey {
    QueueKey::new("test", name, usize::MAX).expect("a good name")
}

/// Calls `step` again and again until it gets the queue's short lock and returns an outcome.
fn done<T>(mut step: impl FnMut() -> Option<Result<T>>) -> T {
    loop {
        if let Some(outcome) = step() {
            return outcome.expect("the disk works");
        }
    }
}

pub(super) fn new_entry(session: SessionId, queue: &QueueKey) -> NewEntry {
    NewEntry {
        entry_ref: EntryRef { queue: queue.clone(), id: EntryId::random(session) },
        session,
        member: "somebody else's".into(),
        label: None,
        mode: Mode::Exclusive,
        data: Data::default(),
        room: Room::default(),
    }
}

pub(super) fn enter(store: &Store, entry: &NewEntry) -> u64 {
    done(|| store.with_queue(&entry.entry_ref.queue, |queue| store.enter(queue, entry))).seq
}

pub(super) fn update(store: &Store, entry: &NewEntry, seq: u64) -> bool {
    done(|| store.with_queue(&entry.entry_ref.queue, |queue| store.update(queue, entry, seq)))
}

pub(super) fn leave(store: &Store, entry: &NewEntry, seq: u64) {
    done(|| store.leave(&entry.entry_ref, Some(seq)));
}

fn set(store: &Store, write: &Write) -> Option<u64> {
    done(|| store.with_queue(&write.queue, |queue| store.write(queue, write)))
}

pub(super) fn read(store: &Store, queue: &QueueKey) -> Listing {
    done(|| store.read(queue))
}

fn write(
    store: &Store,
    queue: &QueueKey,
    expected: Option<u64>,
    data: Option<&str>,
) -> Option<u64> {
    set(store, &Write::new(queue, expected, data.map(Data::from)))
}

fn value(listing: &Listing) -> Option<(u64, &str)> {
    listing.value.as_ref().map(|value| (value.version, &*value.data))
}

pub(super) fn file(directory: &TempDir, queue: &QueueKey) -> PathBuf {
    directory.path().join("test/queues").join(super::queue::file_name(queue))
}

#[test]
fn a_value_is_compared_and_set() {
    let directory = TempDir::new().expect("a directory");
    let (store, other, queue) = (store(directory.path()), store(directory.path()), key("a"));
    let first = Write::new(&queue, None, Some("one".into()));
    let version = set(&store, &first).expect("there is none");
    assert_eq!(set(&other, &first), Some(version), "repeated");
    assert_eq!(write(&other, &queue, None, Some("two")), None);
    assert_eq!(write(&other, &queue, Some(version - 1), Some("two")), None);
    let second = write(&other, &queue, Some(version), Some("")).expect("it is as expected");
    assert!(second > version);
    assert_eq!(value(&read(&store, &queue)), Some((second, "")));
    assert_eq!(set(&store, &first), None, "written over");
    let removal = Write::new(&queue, Some(second), None);
    assert_eq!(set(&store, &removal), Some(second));
    assert_eq!(set(&store, &removal), Some(second), "repeated");
    assert_eq!(value(&read(&other, &queue)), None);
    assert!(write(&other, &queue, None, Some("three")) > Some(second));
}

/// On a slow disk, a write may be carried out although its caller has given it up. If the caller then repeats the write, and
/// another process has removed the value in between, the repeated write must not create the value again, however many other
/// writes were given up meanwhile.
#[test]
fn write_once_though_it_was_removed_since() {
    let directory = TempDir::new().expect("a directory");
    let (store, other, queue) = (store(directory.path()), store(directory.path()), key("a"));
    let create = Write::new(&queue, None, Some("one".into()));
    let version = set(&store, &create);
    for _ in 0..1_500 {
        let given_up = write(&store, &key("b"), None, Some("one"));
        assert_eq!(write(&store, &key("b"), given_up, None), given_up);
    }
    assert_eq!(write(&other, &queue, version, None), version);
    assert_eq!(set(&store, &create), None, "its caller was not told");
    assert_eq!(value(&read(&store, &queue)), None);
}

#[test]
fn if_empty_counts_the_living() {
    let directory = TempDir::new().expect("a directory");
    let (store, other, queue) = (store(directory.path()), store(directory.path()), key("a"));
    let session = open(&other);
    enter(&other, &new_entry(session, &queue));
    let write = Write { if_empty: true, ..Write::new(&queue, None, Some("one".into())) };
    assert_eq!(set(&store, &write), None);
    let before = read(&store, &queue);
    die(other);
    assert_ne!(done(|| store.revision(&queue)), before.revision, "a session died");
    assert!(set(&store, &write).is_some());
    assert_eq!(read(&store, &queue).entries, []);
}

/// Probing many sessions takes long, and others need the short lock meanwhile.
#[test]
fn who_looks_probes_sessions_without_the_lock() {
    let directory = TempDir::new().expect("the temporary directory is writable");
    let (ours, others) = (store(directory.path()), store(directory.path()));
    let (queue, sessions) = (key("a"), [(); 3].map(|()| open(&others)));
    for session in sessions {
        enter(&others, &new_entry(session, &queue));
    }
    assert_eq!(read(&ours, &queue).entries.len(), 3);
    let probes = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    assert_eq!(probes(&ours.sessions.probes), 3);
    // Whoever waits for a change looks so.
    done(|| ours.revision(&queue));
    assert_eq!(probes(&ours.sessions.probes), 6);
    assert_eq!(probes(&ours.sessions.probes_in_turn), 0);
    others.sessions.close(sessions[1]).expect("it is ours");
    assert_eq!(read(&ours, &queue).entries.len(), 2, "a dead session is listed");
}

#[test]
fn an_update_is_seen_and_only_the_owner_makes_it() {
    let directory = TempDir::new().expect("a directory");
    let (store, other, queue) = (store(directory.path()), store(directory.path()), key("a"));
    let entry = new_entry(open(&store), &queue);
    let seq = enter(&store, &entry);
    let blocks = |waiter| done(|| other.blocks(&entry.entry_ref, seq, waiter));
    assert!(blocks(Mode::Shared) && blocks(Mode::Exclusive));
    let before = done(|| other.revision(&queue));
    let shared = NewEntry { mode: Mode::Shared, data: "é".into(), ..entry.clone() };
    assert!(!update(&other, &shared, seq));
    assert!(update(&store, &shared, seq) && update(&store, &shared, seq));
    assert!(!blocks(Mode::Shared) && blocks(Mode::Exclusive));
    let listing = read(&other, &queue);
    assert_ne!(listing.revision, before);
    let [Entry { mode: Mode::Shared, data, member, .. }] = &*listing.entries else {
        panic!("{listing:?}");
    };
    assert_eq!((&**data, &**member), ("é", "somebody else's"));
    assert!(!update(&store, &shared, seq + 1));
    done(|| store.leave(&entry.entry_ref, Some(seq)));
    assert!(!update(&store, &shared, seq));
}

#[test]
fn names_are_those_of_queues_with_a_value_or_an_entry() {
    let directory = TempDir::new().expect("a directory");
    let (store, long) = (store(directory.path()), "é.".repeat(300));
    for name in ["b/c", "a", &long, "removed"] {
        write(&store, &key(name), None, Some("one"));
    }
    let version = read(&store, &key("removed")).value.map(|value| value.version);
    write(&store, &key("removed"), version, None);
    read(&store, &key("never"));
    let other = QueueKey::new("tes", "other", usize::MAX).expect("a good name");
    write(&store, &other, None, Some("one"));
    fs::write(directory.path().join("test/queues/test.a~"), "an editor's").expect("it is ours");
    let names = |store: &Store| {
        let files = store.queues.names().expect("it can be listed");
        let key = |file: &String| store.key("test", file).expect("it can be read");
        let keys = files.iter().filter_map(key).filter(|key| done(|| store.has_value(key)));
        let mut names: Vec<_> = keys.map(|key| key.name().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&store), ["a", "b/c", &*long]);
    assert_eq!(names(&super::tests::store(directory.path())), ["a", "b/c", &*long]);
    let (other, queue) = (super::tests::store(directory.path()), key("removed"));
    enter(&other, &new_entry(open(&other), &queue));
    assert!(done(|| store.has_entry(&queue)) && !done(|| store.has_entry(&key("a"))));
    die(other);
    assert!(!done(|| store.has_entry(&queue)), "its session is over");
}

/// When the file is cut back to its first page, a short value is kept in that page.
#[test]
fn a_small_value_costs_a_queue_no_more_than_its_page() {
    let directory = TempDir::new().expect("a directory");
    let (store, queue) = (store(directory.path()), key("a"));
    let session = open(&store);
    let mut version = write(&store, &queue, None, Some("value"));
    for _ in 0..100 {
        let entry = new_entry(session, &queue);
        let seq = enter(&store, &entry);
        version = write(&store, &queue, version, Some("value")).or(version);
        done(|| store.leave(&entry.entry_ref, Some(seq)));
    }
    assert_eq!(
        value(&read(&super::tests::store(directory.path()), &queue)).map(|value| value.1),
        Some("value")
    );
    assert!(fs::metadata(file(&directory, &queue)).expect("it is there").len() <= 1024);
}

/// What the queue is expected to have.
#[derive(Default)]
struct Model {
    entries: Vec<(u64, NewEntry)>,
    value: Option<(u64, String)>,
    last: u64,
}

impl Model {
    fn assert_is(&self, listing: &Listing) {
        let value = self.value.as_ref().map(|(version, data)| (*version, &**data));
        assert!(self::value(listing) == value, "another value");
        let listed = listing.entries.iter().map(|entry| (entry.seq, entry.mode, &*entry.data));
        let expected = self.entries.iter().map(|(seq, entry)| (*seq, entry.mode, &*entry.data));
        assert!(listed.eq(expected), "other entries");
    }

    fn counts(&mut self, number: u64) {
        assert!(number > self.last);
        self.last = number;
    }

    fn step(&mut self, random: &mut StdRng, store: &Store, session: SessionId, queue: &QueueKey) {
        let longest = [1, 100, 20_000][random.random_range(0..3)];
        let data = "x".repeat(random.random_range(0..longest));
        // The data differ each time, so that every update and every write is a change.
        let data = format!("{} {data}", random.random::<u64>());
        let own = |(_, (_, entry)): &(usize, &(u64, NewEntry))| entry.session == session;
        let found = self.entries.iter().enumerate().find(own).map(|(index, _)| index);
        match (random.random_range(0..10), found) {
            (0..2, _) if self.entries.len() < 3 => {
                let room = Room { updates: random.random_range(0..3), bytes: 100 };
                let entry = NewEntry { data: data.into(), room, ..new_entry(session, queue) };
                let seq = enter(store, &entry);
                self.counts(seq);
                self.entries.push((seq, entry));
            }
            (0..2, Some(index)) => {
                let (seq, entry) = &mut self.entries[index];
                (entry.mode, entry.data) = (Mode::Shared, data.into());
                assert!(update(store, entry, *seq));
            }
            (2..4, Some(index)) => {
                let (seq, entry) = self.entries.remove(index);
                done(|| store.leave(&entry.entry_ref, Some(seq)));
            }
            (4, _) if self.value.is_some() => {
                let version = self.value.take().map(|value| value.0);
                assert_eq!(write(store, queue, version, None), version);
            }
            _ => {
                let expected = self.value.as_ref().map(|value| value.0);
                let version = write(store, queue, expected, Some(&data)).expect("as expected");
                self.counts(version);
                self.value = Some((version, data));
            }
        }
    }
}

fn random_steps(seed: u64, name: &str, durable: bool) {
    let random = &mut StdRng::seed_from_u64(seed);
    let directory = TempDir::new().expect("a directory");
    let queue = key(name);
    let path = file(&directory, &queue);
    let stores = [(); 2].map(|()| store_if(directory.path(), durable));
    let sessions = [open(&stores[0]), open(&stores[1])];
    let mut model = Model::default();
    let mut last_seen = 0;
    for _ in 0..400 {
        let before = fs::read(&path).unwrap_or_default();
        let who = random.random_range(0..2);
        model.step(random, &stores[who], sessions[who], &queue);
        let after = fs::read(&path).expect("it is there");
        assert!((after.len() as u64) < LONGEST);
        if after.len() < before.len() && random.random() {
            // As if the process was killed after it wrote the header and before it cut the file. Both stores then read the file
            // again.
            let mut text = [&after, &before[after.len()..]].concat();
            if after.len() > 1024 {
                text[after.len()] = 0;
            }
            fs::write(&path, text).expect("it is ours");
            stores.iter().for_each(|store| store.open_files.clear());
        }
        if random.random_range(0..20) == 0 {
            stores[who].open_files.clear();
        }
        let revision = done(|| stores[who].revision(&queue));
        assert_ne!(revision, last_seen, "a step is not seen");
        last_seen = revision;
        if random.random() {
            let listing = read(&stores[random.random_range(0..2)], &queue);
            model.assert_is(&listing);
            assert_eq!(listing.revision, revision);
        }
    }
    model.assert_is(&read(&store(directory.path()), &queue));
}

#[test]
fn random_steps_come_to_what_they_should() {
    (0..4).for_each(|seed| random_steps(seed, "a", seed == 3));
}

#[test]
fn random_steps_come_to_what_they_should_under_a_name_longer_than_a_page() {
    (0..2).for_each(|seed| random_steps(seed, &"é".repeat(300), false));
}

#[test]
fn a_value_that_is_written_for_months_takes_no_more_room() {
    let directory = TempDir::new().expect("a directory");
    let queue = key("a");
    let (store, other) = (store(directory.path()), super::tests::store(directory.path()));
    let entry = new_entry(open(&store), &queue);
    let seq = enter(&store, &entry);
    let mut version = None;
    for round in 0..400 {
        let data = format!("{round} {}", "x".repeat(40_000));
        version = write(&store, &queue, version, Some(&data));
        if round % 100 == 0 {
            assert_eq!(value(&read(&other, &queue)), version.map(|version| (version, &*data)));
        }
        let stat = fs::metadata(file(&directory, &queue)).expect("it is there");
        assert!(stat.len() < LONGEST && stat.blocks() * 512 < LONGEST, "{stat:?}");
    }
    assert_eq!(read(&other, &queue).entries.len(), 1);
    assert_eq!(done(|| store.position(&entry, seq)).map(|position| position.seq), Some(seq));
}

/// Not a test by itself. [`a_killed_writer_leaves_a_whole_value`] runs it in a child process, and kills that process.
#[test]
fn killed_writer() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let (store, queue) = (store(Path::new(&directory)), key("a"));
    let (session, mut random) = (open(&store), StdRng::from_rng(&mut rand::rng()));
    loop {
        let entry = NewEntry { data: "x".repeat(3_000).into(), ..new_entry(session, &queue) };
        let seq = enter(&store, &entry);
        let size = [10, 200, 100_000][random.random_range(0..3)];
        let version = read(&store, &queue).value.map(|value| value.version);
        let text = "x".repeat(random.random_range(0..size));
        write(&store, &queue, version, Some(&format!("{} {text}", text.len())));
        update(&store, &NewEntry { data: "y".repeat(3_000).into(), ..entry.clone() }, seq);
        if random.random() {
            done(|| store.leave(&entry.entry_ref, Some(seq)));
        }
    }
}

#[test]
fn a_killed_writer_leaves_a_whole_value() {
    let directory = TempDir::new().expect("a directory");
    let (store, looks, queue) = (store(directory.path()), store(directory.path()), key("a"));
    let kept = NewEntry { data: "kept".into(), ..new_entry(open(&store), &queue) };
    let seq = enter(&store, &kept);
    let mut last = 0;
    for _ in 0..25 {
        let exe = std::env::current_exe().expect("it runs");
        let mut child = Command::new(exe)
            .args(["--exact", "backend::file::tests::killed_writer"])
            .env(CHILD, directory.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("it can be started");
        // On a busy machine it takes long until it writes.
        let version = || value(&read(&looks, &queue)).map_or(0, |(version, _)| version);
        let begun = Instant::now();
        while version() == last && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(rand::random_range(0..20_000)));
        child.kill().expect("it is ours");
        child.wait().expect("it was killed");
        // In about half of the cases, the file is read from its beginning, as a new process would read it.
        if rand::random() {
            store.open_files.clear();
        }
        let listing = read(&store, &queue);
        let [own] = &*listing.entries else { panic!("{} entries", listing.entries.len()) };
        assert_eq!((own.seq, &*own.data), (seq, "kept"));
        let Some((version, data)) = value(&listing) else {
            assert_eq!(last, 0, "the value is lost");
            continue;
        };
        let (length, text) = data.split_once(' ').expect("it is whole");
        assert_eq!(length.parse(), Ok(text.len()));
        assert!(version >= last);
        last = version;
    }
    assert!(last > 0);
}

/// Runs all tests of this store once more, on Linux, with what other systems have.
#[cfg(coordination_internals)]
#[test]
fn all_of_this_passes_without_what_only_linux_has() {
    if std::env::var_os(PLAIN).is_some() {
        return;
    }
    // Other systems cannot reserve space on a disk that becomes full. And they have no notifications, so nothing is told at once,
    // and nobody is woken.
    let skipped = [
        "f36_whoever_has_entered_can_leave_on_a_full_disk",
        "f36_room_that_went_with_a_repair_is_not_counted_on",
        "a_release_is_told_at_once",
        "waking::tests::",
    ];
    let skipped = skipped.map(|test| ["--skip", test]);
    let exe = std::env::current_exe().expect("it runs");
    let mut tests = Command::new(exe);
    tests
        .arg("backend::file::")
        .args(skipped.as_flattened())
        .arg("--test-threads=2")
        .env(PLAIN, "1");
    tests.env_remove("RUST_TEST_NOCAPTURE").env_remove("RUST_TEST_THREADS");
    let ended = tests.output().expect("it can be started");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}");
    // Those that pass at once if what Linux has is used after all.
    for test in [
        "tests::names_that_differ_only_in_case_have_files_of_their_own",
        "tests::f36_deaths_on_a_full_disk_keep_nobody_waiting",
        "polls::tests::a_watcher_probes_few_sessions",
    ] {
        assert!(said.contains(&format!("{test} ... ok")), "{test} did not run: {said}");
    }
}

/// On any file system, also on one that does not distinguish letters by their case.
#[cfg(coordination_internals)]
#[test]
fn names_that_differ_only_in_case_have_files_of_their_own() {
    if std::env::var_os(PLAIN).is_none() {
        return;
    }
    assert!(system::folds_case() && !system::notifies(), "the variable has another name");
    let directory = TempDir::new().expect("a directory");
    let store = store(directory.path());
    let session = open(&store);
    let names = ["vol-7", "Vol-7", "VOL-7", "%56ol-7", "%56OL-7"];
    for name in names {
        let entry = new_entry(session, &key(name));
        enter(&store, &entry);
        let entries = read(&store, &key(name)).entries;
        assert_eq!(entries.len(), 1, "{name} is one with another");
    }
    let files = fs::read_dir(directory.path().join("test/queues")).expect("it is there");
    let files = files.map(|file| file.expect("it is listed").file_name());
    let files: Vec<_> = files.map(|file| file.into_string().expect("ours are ASCII")).collect();
    let mut folded: Vec<_> = files.iter().map(|file| file.to_lowercase()).collect();
    folded.sort_unstable();
    folded.dedup();
    assert_eq!(folded.len(), files.len(), "{files:?}");
    let mut known: Vec<_> =
        files.iter().filter_map(|file| store.key("test", file).expect("the disk works")).collect();
    known.sort_unstable();
    let mut all = names.map(key);
    all.sort_unstable();
    assert_eq!(known, all);
}

async fn backend(directory: &TempDir) -> Arc<dyn backend::Store> {
    let url =
        format!("file://{}?namespace=test&network_filesystem=allow", directory.path().display());
    let (target, settings) = Target::parse(&url, Default::default()).expect("a good URL");
    target.connect(&settings).await.expect("the directory is ours")
}

const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(5);

/// The member's file is empty here, as it would be on a full disk, where the session cannot write its id into the file. Even then,
/// the member id must count as taken.
#[tokio::test]
async fn a_member_without_a_note_is_taken() {
    let directory = TempDir::new().expect("a directory");
    let (backend, other) = (backend(&directory).await, backend(&directory).await);
    let session = |member: &str| NewSession {
        id: SessionId::random(),
        member: member.into(),
        ttl: Duration::ZERO,
    };
    let first = session("m");
    backend.open(&first).await.expect("nobody else is there");
    File::options()
        .write(true)
        .open(directory.path().join("test/members/m"))
        .and_then(|file| file.set_len(0))
        .expect("it is ours");
    let refused = other.open(&session("m")).await.expect_err("it is taken");
    assert_eq!(refused.kind(), ErrorKind::MemberExists, "{refused}");
    backend.close(first.id).await.expect("the disk works");
    other.open(&session("m")).await.expect("it is free");
}

#[tokio::test]
async fn a_change_is_told_be_it_of_the_value_or_a_death() {
    let directory = TempDir::new().expect("a directory");
    let (backend, other, queue) = (backend(&directory).await, store(directory.path()), key("a"));
    enter(&other, &new_entry(open(&other), &queue));
    let revision = || async { backend.read(&queue).await.expect("the disk works").revision };
    let told = |before| tokio::time::timeout(SOON, backend.changed(&queue, before, LONG));
    let before = revision().await;
    let (told_of_value, _) = tokio::join!(told(before), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        write(&other, &queue, None, Some("one"))
    });
    told_of_value.expect("in time").expect("the disk works");
    let before = revision().await;
    let (told_of_death, ()) = tokio::join!(told(before), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        die(other);
    });
    told_of_death.expect("in time").expect("the disk works");
    assert_ne!(revision().await, before);
}

#[tokio::test]
async fn no_change_is_told_when_it_is_time_to_look_again() {
    let directory = TempDir::new().expect("a directory");
    let (backend, queue) = (backend(&directory).await, key("a"));
    let before = backend.read(&queue).await.expect("the disk works").revision;
    let start = Instant::now();
    backend.changed(&queue, before, Duration::from_millis(200)).await.expect("the disk works");
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!(backend.read(&queue).await.expect("the disk works").revision, before);
}

/// A process that removes the files of dead sessions locks the files of live ones too, for a moment. On a busy machine, that
/// process may be stopped while it has the files locked. A session that is opened then must wait for the files, and not fail.
#[tokio::test]
async fn files_that_are_only_looked_at_do_not_keep_a_session_from_opening() {
    let directory = TempDir::new().expect("a directory");
    let backend = backend(&directory).await;
    for kind in ["sessions", "members"] {
        let id = SessionId::random();
        let new = NewSession { id, member: "m".into(), ttl: Duration::ZERO };
        let name = if kind == "sessions" { id.to_string() } else { "m".to_owned() };
        let path = directory.path().join("test").join(kind).join(name);
        // The file has the id of a dead session, so the member id is not in use.
        fs::write(&path, SessionId::random().to_string()).expect("it is ours");
        let looked_at = fs::File::open(&path).expect("it is there");
        flock(&looked_at, FlockOperation::LockExclusive).expect("nobody has it");
        let (opened, ()) = tokio::join!(backend.open(&new), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::remove_file(&path).expect("it is there");
            drop(looked_at);
        });
        opened.expect("nobody has the member id");
        backend.close(new.id).await.expect("it is open");
    }
}

/// The kernel notifies the close of a file before it drops the file's lock, and a dying process may be stopped in between. Even
/// then, a waiter must learn of the death soon.
#[tokio::test]
async fn a_death_is_told_though_its_lock_goes_late() {
    let directory = TempDir::new().expect("a directory");
    let (backend, other, queue) = (backend(&directory).await, store(directory.path()), key("a"));
    // A waiter looks again and again for two seconds. On a machine that stands still for longer than that, the lock goes too late.
    for _ in 0..20 {
        let session = open(&other);
        let entry = new_entry(session, &queue);
        let seq = enter(&other, &entry);
        let gone = backend.gone(&entry.entry_ref, seq, Mode::Exclusive, LONG);
        let (told, late) = tokio::join!(tokio::time::timeout(LONG / 2, gone), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let path = directory.path().join("test/sessions").join(session.to_string());
            let closed = Instant::now();
            drop(File::options().write(true).open(path).expect("it is there"));
            tokio::time::sleep(Duration::from_millis(300)).await;
            let locked = other.sessions.file(session).expect("there is room").expect("it is open");
            flock(&locked, FlockOperation::Unlock).expect("it is ours");
            closed.elapsed()
        });
        match told {
            Ok(told) => return told.expect("the disk works"),
            Err(_) => assert!(late > Duration::from_secs(1), "it was not told, {late:?} late"),
        }
    }
    panic!("the lock always goes too late");
}

#[tokio::test]
async fn an_entry_that_becomes_shared_is_gone_to_who_shares() {
    let directory = TempDir::new().expect("a directory");
    let (backend, other, queue) = (backend(&directory).await, store(directory.path()), key("a"));
    let entry = new_entry(open(&other), &queue);
    let seq = enter(&other, &entry);
    let gone = |waiter, limit| {
        let gone = backend.gone(&entry.entry_ref, seq, waiter, LONG);
        async move { tokio::time::timeout(limit, gone).await.is_ok() }
    };
    let (shared, exclusive, _) = tokio::join!(
        gone(Mode::Shared, SOON),
        gone(Mode::Exclusive, Duration::from_millis(300)),
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            update(&other, &NewEntry { mode: Mode::Shared, ..entry.clone() }, seq)
        }
    );
    assert!(shared && !exclusive);
}

#[tokio::test]
async fn while_another_session_ends_a_release_is_told_at_once() {
    let directory = TempDir::new().expect("a directory");
    let (backend, other, queue) = (backend(&directory).await, store(directory.path()), key("a"));
    let session = open(&other);
    let at_once = Duration::from_millis(10);
    let mut fastest = SOON;
    // Only the fastest of many tries is judged: a busy machine is late often, but not every time. An idle one needs no second try.
    for _ in 0..50 {
        if fastest < at_once {
            break;
        }
        let entry = new_entry(session, &queue);
        let seq = enter(&other, &entry);
        let ending = store(directory.path());
        open(&ending);
        let gone = backend.gone(&entry.entry_ref, seq, Mode::Exclusive, LONG);
        let (gone, left) = tokio::join!(tokio::time::timeout(SOON, gone), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            die(ending);
            tokio::time::sleep(Duration::from_millis(42)).await;
            let left = Instant::now();
            done(|| other.leave(&entry.entry_ref, Some(seq)));
            left
        });
        gone.expect("in time").expect("the disk works");
        fastest = fastest.min(left.elapsed());
    }
    assert!(fastest < at_once, "told after {fastest:?}");
}

/// A small file system that can be filled. [`new`](Self::new) returns `None` if this process may not mount one.
struct Disk(TempDir);

impl Disk {
    fn new() -> Option<Self> {
        let directory = TempDir::new().expect("the temporary directory is writable");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=128k", "tmpfs"]).arg(directory.path());
        let is_mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        is_mounted.then(|| Self(directory))
    }

    fn fill(&self) {
        let path = self.0.path().join("filler");
        let filler = File::options().create(true).append(true).open(path);
        let mut filler = filler.expect("an empty file takes no room");
        while filler.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Six entries that wait in one queue on a full disk. Before, two further sessions entered and left again and again, until an
/// `enter` was refused: the lines that they wrote to the log have used up the disk.
struct Crowd {
    stores: [Store; 2],
    entries: Vec<(NewEntry, u64)>,
    disk: Disk,
}

impl Crowd {
    fn new() -> Option<Self> {
        let disk = Disk::new()?;
        let stores = [0, 1].map(|_| store(&disk.0.path().join("locks")));
        let mut crowd = Self { stores, entries: Vec::new(), disk };
        for _ in 0..6 {
            let entry = new_entry(open(&crowd.stores[0]), &key("a"));
            let seq = crowd.enter(0, &entry).expect("the disk has room");
            crowd.entries.push((entry, seq));
        }
        let others = [0, 1].map(|index| open(&crowd.stores[index]));
        // Adds lines to the file until it is longer than the page that it got in advance.
        for _ in 0..100 {
            crowd.try_once(&others).expect("the disk has room");
        }
        crowd.disk.fill();
        let refused = (0..1000).find_map(|_| crowd.try_once(&others).err());
        let error = refused.expect("the disk is full");
        assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        Some(crowd)
    }

    fn enter(&self, index: usize, entry: &NewEntry) -> Result<u64> {
        let store = &self.stores[index];
        let step = |queue: &mut Locked<'_>| store.enter(queue, entry);
        let entered = store.with_queue(&entry.entry_ref.queue, step).expect("nobody has it");
        entered.map(|position| position.seq)
    }

    fn try_once(&self, others: &[SessionId; 2]) -> Result<()> {
        for (index, session) in others.iter().enumerate() {
            let entry = new_entry(*session, &key("a"));
            let seq = self.enter(index, &entry)?;
            self.stores[index].leave(&entry.entry_ref, Some(seq)).expect("nobody has it")?;
        }
        Ok(())
    }

    /// Whether no other entry blocks the entry with this index any more.
    fn is_served(&self, index: usize) -> bool {
        let (entry, seq) = &self.entries[index];
        let position = self.stores[0].position(entry, *seq).expect("nobody has it");
        let position = position.expect("a full disk keeps nobody from his turn");
        position.is_some_and(|position| position.blocker.is_none())
    }
}

#[test]
fn f36_deaths_on_a_full_disk_keep_nobody_waiting() {
    let Some(crowd) = Crowd::new() else { return };
    for index in 0..5 {
        let dead = crowd.entries[index].0.session;
        crowd.stores[0].sessions.close(dead).expect("it is ours");
        // Uses up the space that became free when files were shortened or removed.
        crowd.disk.fill();
        assert!(crowd.is_served(index + 1), "who waits for the dead one with index {index}");
    }
}

#[test]
fn f36_whoever_has_entered_can_leave_on_a_full_disk() {
    let Some(crowd) = Crowd::new() else { return };
    for (index, (entry, seq)) in crowd.entries.iter().enumerate() {
        assert!(crowd.is_served(index), "the one with index {index}");
        let left = crowd.stores[0].leave(&entry.entry_ref, Some(*seq)).expect("nobody has it");
        left.unwrap_or_else(|error| panic!("the one with index {index}: {error}"));
    }
    let listing = crowd.stores[1].read(&key("a")).expect("nobody has it").expect("it is read");
    assert_eq!(listing.entries, []);
}

/// One process cuts off half a line at the end of a log, which also frees the reserved space behind it. Another process, which
/// knows of that space, must not go on relying on it.
#[test]
fn f36_room_that_went_with_a_repair_is_not_counted_on() {
    let Some(disk) = Disk::new() else { return };
    let stores = [0, 1].map(|_| store(&disk.0.path().join("locks")));
    let queue = key("a");
    let sessions = [0, 1].map(|index| open(&stores[index]));
    let [one, other] = &stores;
    // Adds lines to the file until it is longer than the page that it got in advance.
    for _ in 0..20 {
        let entry = new_entry(sessions[0], &queue);
        let seq = enter(one, &entry);
        leave(one, &entry, seq);
    }
    let kept = new_entry(sessions[0], &queue);
    let mut entries = vec![(kept.clone(), enter(one, &kept))];
    let room = Room { updates: 1, bytes: 9_000 };
    let large = NewEntry { room, data: "{}".into(), ..new_entry(sessions[1], &queue) };
    let seq = enter(other, &large);
    leave(other, &large, seq);
    // Appends half a line, as a killed writer would leave it.
    let path = disk.0.path().join("locks/test/queues/test.a");
    let file = File::options().append(true).open(path);
    file.and_then(|mut file| file.write_all(b"- 17")).expect("there is room");
    assert_eq!(read(one, &queue).entries.len(), 1);
    disk.fill();
    let refused = (0..1_000).find_map(|_| {
        let entry = new_entry(sessions[1], &queue);
        let step = |queue: &mut Locked<'_>| other.enter(queue, &entry);
        match other.with_queue(&queue, step).expect("nobody has it") {
            Ok(position) => entries.push((entry, position.seq)),
            Err(error) => return Some(error),
        }
        None
    });
    assert_eq!(refused.expect("the disk is full").kind(), ErrorKind::Storage);
    for (index, (entry, seq)) in entries.iter().enumerate() {
        let left = other.leave(&entry.entry_ref, Some(*seq)).expect("nobody has it");
        left.unwrap_or_else(|error| panic!("the one with index {index}: {error}"));
    }
}
