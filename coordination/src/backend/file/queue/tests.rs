//! What a panic in the middle of a step leaves behind, and what is read without the short lock.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tempfile::TempDir;

use super::super::log::{Record, Written};
use super::super::store::Store;
use super::super::tests::store;
use super::ahead::IN_TURN;
use super::{Locked, QueueFile};
use crate::backend::{Beside, Mode};
use crate::key::QueueKey;

const SEQ: u64 = 7;

fn locked(queue: &mut QueueFile) -> Locked<'_> {
    queue.lock().expect("the disk works").expect("nobody else is there")
}

fn open(store: &Store) -> QueueFile {
    let key = QueueKey::new("lock", "vol-7", 100).expect("a good name");
    QueueFile::open(&store.queues, &key, false, &store.floor).expect("the disk works")
}

/// Writes a value, and beside it a record of its own of this length.
fn write(file: &mut QueueFile, version: u64, length: usize) {
    let value = Written { version, by: version, data: "{}".into() };
    let data = Some("x".repeat(length).into());
    let beside = Beside { name: format!("r{version}").into(), data, is_new: true };
    locked(file).write(value, &[beside]).expect("the disk works");
}

/// Another process may need the lock meanwhile; and if the one that reads is stopped, all others wait for it.
#[test]
fn a_long_log_is_not_read_in_one_turn() {
    let directory = TempDir::new().expect("a directory");
    let store = store(directory.path());
    let (mut writer, mut follower) = (open(&store), open(&store));
    drop(locked(&mut follower));
    (1..=100).for_each(|version| write(&mut writer, version, 10_000));
    // A line that is longer than what is read in a turn.
    write(&mut writer, 101, 2 * IN_TURN);
    for mut reader in [follower, open(&store)] {
        drop(locked(&mut reader));
        assert!(reader.log == writer.log, "it has read something else");
        assert!(reader.most_in_turn <= 2 * IN_TURN, "{} bytes in a turn", reader.most_in_turn);
    }
}

#[test]
fn whoever_reads_without_the_lock_changes_nothing_and_believes_no_half_line() {
    let directory = TempDir::new().expect("a directory");
    let store = store(directory.path());
    let (mut writer, mut reader) = (open(&store), open(&store));
    drop(locked(&mut reader));
    write(&mut writer, 1, 10);
    // The line of a writer that is about to write on, or was killed.
    let end = writer.read_to;
    locked(&mut writer).pwrite(b"= 2 0000000000000002 e30 r", end).expect("the disk works");
    let contents = || fs::read(store.queues.path().join("lock.vol-7")).expect("it is there");
    let before = contents();
    let version = |reader: &QueueFile| reader.log.value().map(|value| value.version);
    let read_ahead =
        |reader: &mut QueueFile| Locked { queue: reader }.read_ahead().expect("the disk works");
    read_ahead(&mut reader);
    assert_eq!((version(&reader), reader.read_to), (Some(1), end));
    assert!(contents() == before, "it has changed the file without the lock");
    // The writer was killed: the next one cuts its line off, and writes on at the same place.
    write(&mut writer, 3, 10);
    read_ahead(&mut reader);
    assert_eq!(version(&reader), Some(1), "it has read on in another generation");
    drop(locked(&mut reader));
    assert_eq!(version(&reader), Some(3));
    assert!(reader.log.record("r1").is_some() && reader.log.record("r3").is_some());
}

#[test]
fn after_a_panic_the_file_is_as_it_was_and_is_read_anew() {
    let directory = TempDir::new().expect("a directory");
    let store = store(directory.path());
    let mut queue = open(&store);
    let record = Record {
        id: "0000000000000001-0a".into(),
        since_ms: 0,
        member: "one".into(),
        label: None,
        mode: Mode::Exclusive,
        data: "".into(),
    };
    locked(&mut queue).enter(SEQ, record).expect("the disk works");
    let steps: [fn(&mut QueueFile); 2] = [
        // In the middle of a read, while the buffer is not in its place.
        |queue| drop(std::mem::take(&mut queue.buffer)),
        // After a change in memory, before its line is in the file.
        |queue| assert!(queue.log.leave(SEQ)),
    ];
    for step in steps {
        let step = AssertUnwindSafe(|| {
            let locked = locked(&mut queue);
            step(locked.queue);
            panic!("on purpose");
        });
        catch_unwind(step).expect_err("it panics");
        let seen: Vec<_> = locked(&mut queue).log().live().iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seen, [SEQ]);
    }
}
