//! Child processes and workers.

use std::{thread, time::Instant};

use coordination_tests::harness::{Child, Launch, Scratch, Worker, rerun_if_starved, wait_until};
use serde_json::json;

use super::{MOMENT, SECOND};

fn sleeper(scratch: &Scratch) -> Child {
    Launch::new("sleep", scratch.join("log")).args(["60"]).start()
}

/// The state in `/proc`: running (`R`, `S`), stopped (`T`), a zombie (`Z`); none if the process is gone.
fn process_state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

#[test]
fn a_child_is_paused_and_resumed() {
    rerun_if_starved(|| {
        let scratch = Scratch::new("child");
        let child = sleeper(&scratch);
        for _ in 0..3 {
            child.pause();
            child.pause();
            assert_eq!(process_state(child.id()), Some('T'));
            assert!(child.is_running());
            child.resume();
            assert!(wait_until(30 * SECOND, || process_state(child.id()) == Some('S')));
        }
    });
}

#[test]
fn a_child_dies_on_drop_even_when_paused() {
    rerun_if_starved(|| {
        let scratch = Scratch::new("child");
        let child = sleeper(&scratch);
        let id = child.id();
        child.pause();
        drop(child);
        assert_eq!(process_state(id), None);
    });
}

#[test]
fn a_child_is_terminated_or_killed() {
    rerun_if_starved(|| {
        let scratch = Scratch::new("child");
        let obedient = sleeper(&scratch);
        let start = Instant::now();
        assert!(!obedient.terminate(60 * SECOND).success());
        assert!(start.elapsed() < 20 * SECOND);
        let stubborn = Launch::new("sh", scratch.join("log"))
            .args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"])
            .start();
        assert!(wait_until(30 * SECOND, || stubborn.log().contains("ready")));
        stubborn.terminate(MOMENT);
        assert!(!stubborn.is_running());
        stubborn.pause();
        stubborn.resume();
    });
}

/// Not a test by itself: the next test runs this test binary again, with only this function, as the parent of a child.
#[test]
fn parent_of_an_orphan() {
    let Some(path) = std::env::var_os("HARNESS_ORPHAN") else {
        return;
    };
    let scratch = Scratch::new("orphan");
    // The thread that starts the child ends soon after. The child must live on, so the end of that thread must not
    // send it a signal.
    let start = || {
        let child = sleeper(&scratch);
        thread::sleep(MOMENT);
        child
    };
    let child = thread::scope(|scope| scope.spawn(start).join().expect("no panic"));
    thread::sleep(MOMENT);
    assert!(child.is_running());
    std::fs::write(path, format!("{}\n", child.id())).expect("writable");
    thread::sleep(30 * SECOND);
}

#[test]
fn a_child_dies_with_its_parent() {
    rerun_if_starved(|| {
        let scratch = Scratch::new("child");
        let file = scratch.join("id");
        let parent = Launch::new(std::env::current_exe().expect("known"), scratch.join("log"))
            .args(["--exact", "gate::harness::processes::parent_of_an_orphan"])
            .env("HARNESS_ORPHAN", &file)
            .start();
        let read_id = || std::fs::read_to_string(&file).ok()?.strip_suffix('\n')?.parse().ok();
        let mut id: Option<u32> = None;
        assert!(wait_until(30 * SECOND, || {
            id = read_id();
            id.is_some()
        }));
        let id = id.expect("just checked");
        assert_eq!(process_state(id), Some('S'));
        parent.kill();
        assert!(wait_until(30 * SECOND, || { matches!(process_state(id), None | Some('Z')) }));
    });
}

fn worker() -> Worker {
    Worker::start(crate::WORKER, "memory://", &[])
}

#[test]
fn a_worker_answers() {
    rerun_if_starved(|| {
        let worker = worker();
        let pong = worker.call(json!({ "command": "ping" }));
        assert_eq!(pong["pid"], worker.child().id());
        let error = worker.try_call(json!({ "command": "dance" }));
        assert_eq!(error.expect_err("unknown")["kind"], "UnknownCommand");
    });
}

#[test]
fn a_paused_worker_answers_later() {
    rerun_if_starved(|| {
        let worker = worker();
        worker.call(json!({ "command": "ping" }));
        worker.pause();
        let id = worker.send(json!({ "command": "ping" }));
        assert_eq!(worker.receive(id, MOMENT), None);
        worker.resume();
        assert!(worker.receive(id, 30 * SECOND).is_some_and(|answer| answer.is_ok()));
    });
}

#[test]
fn a_worker_that_ended_is_noticed_at_once() {
    rerun_if_starved(|| {
        let worker = worker();
        let id = worker.send(json!({ "command": "exit", "code": 3 }));
        assert_eq!(worker.receive(id, 30 * SECOND), None);
        let status = worker.child().wait(30 * SECOND);
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    });
}
