//! `run --no-fork`: a lock that the command holds by what it inherits, with no process beside it.

use std::io::{self, Write};
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;

use crate::{LONG, Store, Wrapper, code, is_alive, output, stderr, stdout, written};

/// Whether somebody else could have the lock.
fn is_free(store: &Store) -> bool {
    store.run("--lock x --wait 0 -- true").status.code() == Some(0)
}

#[test]
fn the_command_takes_our_place_and_holds_the_lock_until_it_ends() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut held, id) = store.running("--no-fork --lock x");
        assert_eq!(id.trim(), held.0.id().to_string());
        assert!(!is_free(&store));
        held.signal(Signal::KILL);
        held.code();
        assert!(wait_until(LONG, || is_free(&store)));
        assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
    });
}

/// As with flock(1): whatever has the descriptor holds the lock.
#[test]
fn what_the_command_leaves_behind_holds_the_lock_as_well() {
    rerun_if_starved(|| {
        let store = Store::file();
        let left = store.path("left");
        let text =
            format!("#!/bin/sh\nsleep 60 > /dev/null 2>&1 &\necho $! > {}\n", left.display());
        let leaves = store.script("leaves", &text);
        let ended = store.run(&format!("--no-fork --lock x -- {leaves}"));
        assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
        let left = written(&left);
        assert!(is_alive(&left) && !is_free(&store));
        let id = left.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(id.expect("a number"), Signal::KILL).expect("it lives");
        assert!(wait_until(LONG, || is_free(&store)));
    });
}

#[test]
fn the_command_is_told_what_it_holds_and_its_end_is_ours() {
    rerun_if_starved(|| {
        let store = Store::file();
        let says =
            "#!/bin/sh\necho \"$LOCK_NAME ${LOCK_TOKEN:+token} ${LOCK_DEADLINE-none}\"\nexit 9\n";
        let ended = store.run(&format!("--no-fork --lock x -- {}", store.script("says", says)));
        assert_eq!((ended.status.code(), stdout(&ended).as_str()), (Some(9), "x token none\n"));
        let dies = store.script("dies", "kill -KILL $$\n");
        let ended = store.run(&format!("--no-fork --semaphore s:1 -- {dies}"));
        assert_eq!(code(ended.status), Some(137), "by the shell, as it has no first line");
        let missing = store.run("--no-fork --lock x -- no-such-program");
        assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
        assert!(is_free(&store));
        // What is held around a run within is known there, too.
        let run = format!("{} run --lock x -- true", env!("CARGO_BIN_EXE_coordination"));
        let within = store.script("within", &format!("#!/bin/sh\nexec {run}\n"));
        let refused = store.run(&format!("--no-fork --lock x -- {within}"));
        assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
    });
}

#[test]
fn a_busy_lock_is_75_and_a_store_with_leases_is_64() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _held = store.runs("--no-fork --lock x");
        let busy = store.run("--no-fork --lock x --wait 100ms -- true");
        assert_eq!(busy.status.code(), Some(75));
        assert!(stderr(&busy).contains("held by"), "{}", stderr(&busy));
        let skipped = store.run("--no-fork --lock x --wait 0 --if-busy skip -- false");
        assert_eq!(skipped.status.code(), Some(0));
        // It is not even asked.
        let server = Store::at("redis://127.0.0.1:1/0".to_owned());
        let refused = server.run("--no-fork --lock x -- true");
        assert_eq!(refused.status.code(), Some(64));
        assert!(stderr(&refused).contains("file://"), "{}", stderr(&refused));
    });
}

/// Nobody tells the command; who follows gives it five seconds to end.
#[test]
fn a_lock_that_is_broken_is_the_next_ones() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut held, _) = store.running("--no-fork --lock x");
        let broken = output(&mut store.coordination(["break", "x", "--yes"]));
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        let mut next = store.start("--lock x --wait 30 -- true");
        // The command lives, as long as nobody ends it.
        assert!(!wait_until(Duration::from_secs(2), || !next.is_running()), "it has to wait");
        held.signal(Signal::KILL);
        held.code();
        assert_eq!(next.code(), Some(0));
    });
}

/// Whether it has had anything to say: then a thread of this name is there for that.
fn writes(wrapper: &Wrapper) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", wrapper.0.id()));
    let names = threads.into_iter().flatten().flatten();
    let mut names = names.map(|thread| std::fs::read_to_string(thread.path().join("comm")));
    names.any(|name| name.is_ok_and(|name| name.trim_end() == "stderr"))
}

/// Before we become the command, what we say may have to wait for a second until somebody reads it.
#[test]
fn a_signal_that_comes_just_before_the_command_ends_us() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut before = store.runs("--lock x");
        let (_unread, mut stderr) = io::pipe().expect("descriptors are free");
        fcntl_setfl(&stderr, OFlags::NONBLOCK).expect("it is ours");
        while let Ok(1..) = stderr.write(&[b'x'; 4096]) {}
        fcntl_setfl(&stderr, OFlags::empty()).expect("it is ours");
        let ran = store.path("ran");
        let runs = store.script("runs", &format!("#!/bin/sh\necho > {}\n", ran.display()));
        let mut words = store.coordination(["run", "--no-fork", "--lock", "x", "--wait", "30s"]);
        let mut ours = Wrapper::start(words.args(["--", &runs]).stderr(stderr));
        // After a second it has begun to tell that it waits, and nobody reads it.
        assert!(wait_until(LONG, || writes(&ours)) && ours.is_running());
        before.signal(Signal::TERM);
        before.code();
        // It has the lock by now, and does not run anything for a second.
        assert!(!wait_until(Duration::from_millis(300), || ran.exists()));
        ours.signal(Signal::TERM);
        assert_eq!(ours.code(), Some(143));
        assert!(!ran.exists());
        assert!(is_free(&store));
    });
}
