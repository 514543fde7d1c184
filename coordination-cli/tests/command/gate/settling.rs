//! After which ends of a command the next one starts at once, and after which it waits: by the note at the store.

use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_tests::harness::{Etcd, Redis, Server, rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::{LONG, Store, is_alive, output, written};

/// What etcd needs to tell of a loss, and a command to end.
const SETTLING: Duration = Duration::from_millis(200);

/// With a lease that ends soon.
fn store(server: &Etcd) -> Store {
    Store::at(format!("etcd://{}/cli?ttl=3s&heartbeat=500ms", server.node(0).address()))
}

/// Whether a command may still run, for all that the store knows.
fn is_noted(store: &Store, lock: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("threads").block_on(async {
        let coordinator = Coordinator::connect(&store.url).await.expect("it is there");
        let value = coordinator.lock(lock).and_then(|lock| lock.command::<serde_json::Value>());
        let note = value.expect("a name").read().await.expect("it is there");
        coordinator.stop().await.expect("it is there");
        note.is_some()
    })
}

/// It runs, and waits for as long as it has to if a command may still run.
fn next(store: &Store, lock: &str, noted: bool) {
    assert_eq!(is_noted(store, lock), noted, "{lock}");
    let start = Instant::now();
    let ended = store.run(&format!("--lock {lock} -- true"));
    assert_eq!(ended.status.code(), Some(0));
    assert!(!noted || start.elapsed() >= SETTLING, "{lock}: {:?}", start.elapsed());
    assert!(!is_noted(store, lock), "{lock}: it has ended well");
}

#[test]
fn after_a_command_that_has_ended_the_next_one_starts_at_once() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = store(&server);
        let dies = store.script("dies", "#!/bin/sh\nkill -TERM $$\n");
        let leaves = store.script("leaves", "#!/bin/sh\nsleep 60 &\nsetsid sleep 60 &\n");
        for (command, code) in [("true", 0), ("false", 1), (&dies, 143), (&leaves, 0)] {
            let ended = store.run(&format!("--lock x -- {command}"));
            assert_eq!(crate::code(ended.status), Some(code), "{command}");
            next(&store, "x", false);
        }
        // Nothing was run.
        for code in [0, 0] {
            assert_eq!(store.run("--lock y --every 24h -- true").status.code(), Some(code));
            next(&store, "y", false);
        }
        for code in [0, 75] {
            let ended = store.run("--lock z --rate r:1/1h --wait 1 -- true");
            assert_eq!(ended.status.code(), Some(code));
            next(&store, "z", false);
        }
        // The fastest of some was not put off, on a machine that others use: in turn with runs that are told not to wait.
        let took = |words: &str| {
            let start = Instant::now();
            assert_eq!(store.run(&format!("{words} -- true")).status.code(), Some(0));
            start.elapsed()
        };
        let (mut never, mut new, mut again) = (Duration::MAX, Duration::MAX, Duration::MAX);
        for nth in 0..10 {
            never = never.min(took(&format!("--settle 0s --lock never-{nth}")));
            new = new.min(took(&format!("--lock new-{nth}")));
            again = again.min(took("--lock x"));
        }
        let bound = never + SETTLING / 2;
        assert!(again < bound, "{again:?}, and {never:?} where nothing is waited for");
        assert!(
            new < bound,
            "{new:?} where nobody was before, and {never:?} where nothing is waited for"
        );
    });
}

#[test]
fn after_any_other_end_the_next_one_waits() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = store(&server);
        // The wrapper is killed, as if its host had crashed.
        let (wrapper, id) = store.running("--lock killed");
        wrapper.signal(Signal::KILL);
        assert!(wait_until(LONG, || !is_alive(&id)));
        next(&store, "killed", true);
        // The lock is taken away from one who goes on.
        let (_wrapper, _) = store.running("--on-lost ignore --lock broken");
        let broken = output(&mut store.coordination(["break", "broken", "--yes"]));
        assert_eq!(broken.status.code(), Some(0));
        next(&store, "broken", true);
        // It is let go of while the command runs.
        let (long, _) = store.running("--lock released --release-after 100ms");
        let free = || store.run("--lock released --wait 0 -- true").status.code() == Some(0);
        assert!(wait_until(LONG, || is_noted(&store, "released")));
        assert!(wait_until(LONG, free));
        drop(long);
        // One who writes no notes, as a program that uses the library, was broken.
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let held = runtime.block_on(async {
            let coordinator = Coordinator::connect(&store.url).await.expect("it is there");
            coordinator.lock("library").expect("a name").acquire(None).await.expect("it is free")
        });
        let broken = output(&mut store.coordination(["break", "library", "--yes"]));
        assert_eq!(broken.status.code(), Some(0));
        next(&store, "library", true);
        drop(held);
    });
}

/// It says so when its command has ended, of all locks that it had.
#[test]
fn after_a_wrapper_that_was_told_of_its_loss_the_next_one_starts_at_once() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = store(&server);
        let (mut wrapper, id) = store.running("--lock one --lock other");
        let broken = output(&mut store.coordination(["break", "one", "--yes"]));
        assert_eq!(broken.status.code(), Some(0));
        assert_eq!(wrapper.code(), Some(70));
        assert!(!is_alive(&id));
        next(&store, "other", false);
        next(&store, "one", false);
    });
}

/// The command is stopped in time, and its wrapper cannot tell anybody.
#[test]
fn after_a_store_that_did_not_answer_the_next_one_waits() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = store(&server);
        let (mut wrapper, id) = store.running("--lock x");
        server.node(0).pause();
        assert!(wait_until(LONG, || !is_alive(&id)));
        // So that it cannot be told afterwards, either.
        assert_eq!(wrapper.code(), Some(70));
        server.node(0).resume();
        next(&store, "x", true);
        // The command ends by itself while the store is away, and the lease with it.
        let started = store.path("ends");
        let text = format!("#!/bin/sh\necho $$ > {}\nsleep 0.5\n", started.display());
        let ends = store.script("ends-by-itself", &text);
        let mut wrapper = store.start(&format!("--lock y -- {ends}"));
        written(&started);
        server.node(0).pause();
        std::thread::sleep(Duration::from_secs(5));
        server.node(0).resume();
        wrapper.code();
        // What was sent may arrive; what arrives is true.
        let noted = is_noted(&store, "y");
        next(&store, "y", noted);
    });
}

/// A host has no settling, and so needs no notes; and what may forget them has none.
#[test]
fn where_notes_cannot_be_relied_on_there_are_none() {
    rerun_if_starved(|| {
        let file = Store::file();
        let (mut wrapper, _) = file.running("--lock x");
        wrapper.signal(Signal::TERM);
        wrapper.code();
        assert!(!is_noted(&file, "x"));
        let server = Redis::one();
        let redis = Store::at(format!("redis://{}?quarantine=0", server.node(0).address()));
        let (wrapper, _) = redis.running("--lock x");
        assert!(!is_noted(&redis, "x"));
        drop(wrapper);
    });
}
