//! What a panic in the middle of a step leaves behind.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tempfile::TempDir;

use super::super::log::Record;
use super::super::tests::store;
use super::{Locked, QueueFile};
use crate::backend::Mode;
use crate::key::QueueKey;

const SEQ: u64 = 7;

fn locked(queue: &mut QueueFile) -> Locked<'_> {
    queue.lock().expect("the disk works").expect("nobody else is there")
}

#[test]
fn after_a_panic_the_file_is_as_it_was_and_is_read_anew() {
    let directory = TempDir::new().expect("a directory");
    let store = store(directory.path());
    let key = QueueKey::new("lock", "vol-7", 100).expect("a good name");
    let mut queue =
        QueueFile::open(&store.queues, &key, false, &store.floor).expect("the disk works");
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
