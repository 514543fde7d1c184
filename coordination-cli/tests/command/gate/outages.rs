//! Stores that are away when a command begins, waits or ends.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Etcd, Redis, Server, rerun_if_starved, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::ends::watch_of;
use crate::{LONG, Store, Wrapper, is_alive, output, stderr, written};

/// What a wait may take to end by a signal, which takes milliseconds.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A command on this store, and what it has said so far.
fn logged(store: &Store, log: &str, words: &str) -> (Wrapper, impl Fn() -> String + use<>) {
    let log = store.path(log);
    let file = File::create(&log).expect("the directory is there");
    let mut command = store.coordination(words.split(' '));
    let wrapper = command.stdout(Stdio::null()).stderr(file).spawn().expect("it was built");
    (Wrapper(wrapper), move || std::fs::read_to_string(&log).unwrap_or_default())
}

/// The store falls silent while the command runs, and the session ends while the store is told that the lock is free.
#[test]
fn a_command_that_ended_in_time_keeps_its_code_whatever_the_release_says() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=3s&heartbeat=200ms"));
        let (started, end) = (store.path("started"), store.path("end"));
        let text = format!(
            "#!/bin/sh\necho $$ > {}\nuntil [ -e {} ]; do sleep 0.01; done\nexit 5\n",
            started.display(),
            end.display()
        );
        let command = store.script("command", &text);
        let (mut run, log) = logged(&store, "log", &format!("run --lock x -- {command}"));
        written(&started);
        server.node(0).pause();
        std::fs::write(&end, "").expect("the directory is there");
        assert_eq!((run.code(), log().as_str()), (Some(5), ""));
        server.node(0).resume();
    });
}

/// The wrapper stands still until its deadline is over, and cannot know by itself when its command has ended.
#[test]
fn a_command_that_ended_in_time_keeps_its_code_though_its_wrapper_stood_still() {
    rerun_if_starved(|| {
        let server = Redis::one();
        let at = server.node(0).address();
        let store = Store::at(format!("redis://{at}?quarantine=0&ttl=3s"));
        let overdue = || std::thread::sleep(Duration::from_secs(4));
        for (is_in_time, code) in [(true, 5), (false, 70)] {
            let (started, end) =
                (store.path(&format!("started-{code}")), store.path(&format!("end-{code}")));
            let text = format!(
                "#!/bin/sh\necho $$ > {}\nuntil [ -e {} ]; do sleep 0.01; done\nexit 5\n",
                started.display(),
                end.display()
            );
            let command = store.script(&format!("command-{code}"), &text);
            let words = format!("run --lock x-{code} -- {command}");
            let (mut run, log) = logged(&store, &format!("log-{code}"), &words);
            let id = written(&started);
            let watch = watch_of(&run).expect("it runs");
            // The command begins before the watch is told of it.
            assert!(wait_until(LONG, || has_pidfd(watch)), "the watch waits for its end");
            run.signal(Signal::STOP);
            if !is_in_time {
                // Nobody ends the command, and nobody sees when it ends.
                kill_process(watch, Signal::STOP).expect("it runs");
                overdue();
            }
            std::fs::write(&end, "").expect("the directory is there");
            assert!(wait_until(LONG, || !is_alive(&id)));
            if is_in_time {
                overdue();
            } else {
                kill_process(watch, Signal::CONT).expect("it stands still");
            }
            run.signal(Signal::CONT);
            assert_eq!(run.code(), Some(code), "{}", log());
            assert!(!log().contains("stopping"), "it had ended: {}", log());
        }
    });
}

/// The command has ended in time, and what it has left goes on until the deadline is over, as nobody ends it who stands still.
#[test]
fn a_command_that_has_left_something_beyond_the_deadline_does_not_keep_its_code() {
    rerun_if_starved(|| {
        let server = Redis::one();
        let at = server.node(0).address();
        let store = Store::at(format!("redis://{at}?quarantine=0&ttl=3s"));
        let [started, left, end] = ["started", "left", "end"].map(|name| store.path(name));
        let text = format!(
            "#!/bin/sh\nsleep 60 &\necho $! > {}\necho $$ > {}\nuntil [ -e {} ]; do sleep 0.01; done\nexit 5\n",
            left.display(),
            started.display(),
            end.display()
        );
        let command = store.script("command", &text);
        let (mut run, log) = logged(&store, "log", &format!("run --lock x -- {command}"));
        let (id, left) = (written(&started), written(&left));
        let watch = watch_of(&run).expect("it runs");
        assert!(wait_until(LONG, || has_pidfd(watch)), "the watch waits for its end");
        run.signal(Signal::STOP);
        std::fs::write(&end, "").expect("the directory is there");
        assert!(wait_until(LONG, || !is_alive(&id) && !has_pidfd(watch)), "the watch has seen it");
        kill_process(watch, Signal::STOP).expect("it runs");
        std::thread::sleep(Duration::from_secs(4));
        assert!(is_alive(&left), "nobody has ended it");
        run.signal(Signal::CONT);
        assert_eq!(run.code(), Some(70), "{}", log());
        assert!(!is_alive(&left));
        // The kernel may have let it go on by now.
        let _ = kill_process(watch, Signal::CONT);
    });
}

/// The watch acts a moment before the deadline. The wrapper goes on in that moment, and holds the lock yet.
#[test]
fn a_command_that_its_watch_has_ended_was_stopped() {
    rerun_if_starved(|| {
        let server = Redis::one();
        let at = server.node(0).address();
        let store = Store::at(format!("redis://{at}?quarantine=0&ttl=3s"));
        let (mut run, id) = store.running("--quiet --lock x");
        let watch = watch_of(&run).expect("it runs");
        assert!(wait_until(LONG, || has_pidfd(watch)), "the watch knows the command");
        run.signal(Signal::STOP);
        let begun = Instant::now();
        while is_alive(&id) && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_micros(200));
        }
        run.signal(Signal::CONT);
        assert_eq!(run.code(), Some(70));
    });
}

/// Whether this process has a file open that tells of another one's end.
fn has_pidfd(process: Pid) -> bool {
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().contains("pidfd")
    })
}

#[test]
fn a_store_that_is_down_at_the_start_is_waited_for_if_that_is_wanted() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = Store::at(format!("etcd://{}/cli", server.node(0).address()));
        let item = output(&mut store.coordination(["post", "q", "item"]));
        assert_eq!(item.status.code(), Some(0), "{}", stderr(&item));
        server.node(0).kill();
        for words in [
            "run --lock x --wait 0 -- true",
            "elect x --wait 0 -- true",
            "work q --wait 0 --once -- true",
            "elect x -- true",
            "work q --once -- true",
            "status",
        ] {
            let ended = output(&mut store.coordination(words.split(' ')));
            assert_eq!(ended.status.code(), Some(69), "{words}: {}", stderr(&ended));
        }
        let begun = Instant::now();
        let ended = store.run("--lock x --wait 1500ms -- true");
        assert_eq!(ended.status.code(), Some(69), "{}", stderr(&ended));
        assert!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());

        let waiting = [
            "run --lock x --wait forever -- true",
            "run --rate r:1/1s --wait 1m -- true",
            "elect x --wait 1m -- true",
            "work q --wait 1m --once -- true",
        ];
        let mut waiting: Vec<_> = waiting
            .iter()
            .enumerate()
            .map(|(number, words)| logged(&store, &format!("log-{number}"), words))
            .collect();
        let is_told = |log: &str| log.contains("waiting for the store since 1 s: ");
        for (wrapper, log) in &mut waiting {
            assert!(wait_until(LONG, || is_told(&log())) && wrapper.is_running(), "{}", log());
        }
        let (mut ended, _) = logged(&store, "ended", "run --lock x --wait 1m -- true");
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        ended.signal(Signal::TERM);
        assert_eq!(ended.code(), Some(143));
        assert!(begun.elapsed() < AT_ONCE, "after {:?}", begun.elapsed());

        server.node(0).restart();
        server.wait_ready();
        for (wrapper, log) in &mut waiting {
            assert_eq!(wrapper.code(), Some(0), "{}", log());
            assert!(log().contains("reached the store after "), "{}", log());
        }
    });
}

/// What is wrong with a URL is not mended by waiting.
#[test]
fn what_cannot_pass_is_told_at_once_however_long_one_would_wait() {
    rerun_if_starved(|| {
        let begun = Instant::now();
        let store = Store::at("ftp://h".to_owned());
        let refused = store.run("--lock x --wait 1m -- true");
        assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
        assert!(begun.elapsed() < LONG, "after {:?}", begun.elapsed());
    });
}

/// As by a signal: the store is known to be silent, and has nothing of ours but a place in a queue.
#[test]
fn a_wait_ends_in_time_while_the_store_is_away() {
    const WAIT: Duration = Duration::from_secs(4);
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=20s&heartbeat=200ms"));
        let _holder = store.runs("--lock x");
        let _leader = Wrapper::start(&mut store.coordination("elect x -- sleep 60".split(' ')));
        let leads = || output(&mut store.coordination(["leader", "x"])).status.success();
        assert!(wait_until(LONG, leads));
        let begun = Instant::now();
        let waiting = [
            "run --lock x --wait 4s -- true",
            "elect x --wait 4s -- true",
            "work q --wait 4s --once -- true",
        ];
        let mut waiting = waiting.map(|words| (words, logged(&store, words, words)));
        std::thread::sleep(Duration::from_secs(2));
        server.node(0).pause();
        for (words, (waiter, log)) in &mut waiting {
            assert!(matches!(waiter.code(), Some(69 | 75)), "{words}: {}", log());
            let late = begun.elapsed().saturating_sub(WAIT);
            assert!(late < 2 * AT_ONCE, "{words}: {late:?} late");
        }
        server.node(0).resume();
    });
}

#[test]
fn a_wait_ends_at_once_by_a_signal_while_the_store_is_away() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=10s&heartbeat=200ms"));
        let _holder = store.runs("--lock x");
        let _leader = Wrapper::start(&mut store.coordination("elect x -- sleep 60".split(' ')));
        let leads = || output(&mut store.coordination(["leader", "x"])).status.success();
        assert!(wait_until(LONG, leads));
        // When the session does not know of it yet, and when it does.
        for known in [Duration::ZERO, Duration::from_secs(1)] {
            let waiting = [
                "run --lock x -- true",
                "elect x -- true",
                "work q -- true",
                "status --watch --json",
            ];
            let mut waiting = waiting.map(|words| (words, logged(&store, words, words).0));
            std::thread::sleep(Duration::from_secs(1));
            server.node(0).pause();
            std::thread::sleep(known);
            for (words, waiter) in &mut waiting {
                let begun = Instant::now();
                waiter.signal(Signal::TERM);
                assert_eq!(waiter.code(), Some(143), "{words}");
                assert!(begun.elapsed() < AT_ONCE, "{words}: after {:?}", begun.elapsed());
            }
            server.node(0).resume();
        }
    });
}
