//! The history written by several recorders.

use std::thread;

use coordination_tests::harness::{Recorder, Scratch, log};
use serde_json::{Value, json};

#[test]
fn records_of_two_recorders_are_in_order_of_time() {
    let scratch = Scratch::new("log");
    let path = scratch.join("history");
    let (first, second) = (Recorder::open(&path, "a"), Recorder::open(&path, "b"));
    let before = log::now_ns();
    second.record("acquired", "x", Some(7), json!({ "wait": 1 }));
    first.record_at(before, "asked", "x", None, Value::Null);
    let records = log::read(&path);
    let events: Vec<_> = records.iter().map(|record| record.event.as_str()).collect();
    assert_eq!(events, ["asked", "acquired"]);
    assert_eq!((records[1].token, records[1].worker.as_str()), (Some(7), "b"));
}

#[test]
fn records_written_at_once_do_not_mix() {
    let scratch = Scratch::new("log");
    let path = scratch.join("history");
    thread::scope(|scope| {
        for worker in ["a", "b", "c", "d"] {
            let recorder = Recorder::open(&path, worker);
            scope.spawn(move || {
                (0..500).for_each(|n| recorder.record("e", "x", Some(n), Value::Null));
            });
        }
    });
    assert_eq!(log::read(&path).len(), 2_000);
}
