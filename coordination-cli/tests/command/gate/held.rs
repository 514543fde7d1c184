//! What a command can run under, and what it is told of that.

use std::time::{Duration, Instant};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::{LONG, Store, output, stderr, stdout, written};

#[test]
fn the_command_knows_what_it_holds() {
    rerun_if_starved(|| {
        let store = Store::file();
        let command = store
            .script("says", "#!/bin/sh\necho \"$LOCK_NAME $LOCK_TOKEN ${LOCK_DEADLINE-none}\"\n");
        let tokens: Vec<u64> = (0..3)
            .map(|_| {
                let said = stdout(&store.run(&format!("--lock vol-7 -- {command}")));
                let words: Vec<_> = said.split_whitespace().collect();
                assert_eq!((words[0], words[2]), ("vol-7", "none"), "a file has no lease");
                words[1].parse().expect("a number")
            })
            .collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    });
}

#[test]
fn shares_go_together_and_keep_others_out() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _shares: Vec<_> =
            (0..2).map(|nth| store.runs(&format!("--lock x --shared --wait {nth}0s"))).collect();
        assert_eq!(store.run("--lock x --wait 0 -- true").status.code(), Some(75));
        assert_eq!(store.run("--lock x --shared --wait 0 -- true").status.code(), Some(0));
    });
}

#[test]
fn a_semaphore_has_as_many_permits_as_it_says() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _two: Vec<_> =
            (0..2).map(|nth| store.runs(&format!("--semaphore s:2 --wait {nth}0s"))).collect();
        assert_eq!(store.run("--semaphore s:2 --wait 0 -- true").status.code(), Some(75));
        assert_eq!(
            store.run("--semaphore s:3 --wait 0 -- true").status.code(),
            Some(64),
            "another number"
        );
    });
}

#[test]
fn a_singleton_has_one_who_works_and_so_many_who_stand_by() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _works = store.runs("--singleton job --standby 1");
        let mut stands_by = store.start("--singleton job --standby 1 -- true");
        let is_told = || {
            let status = output(&mut store.coordination(["status", "job"]));
            stdout(&status).contains("stands by")
        };
        assert!(wait_until(LONG, is_told) && stands_by.is_running());
        let start = Instant::now();
        assert_eq!(store.run("--singleton job --standby 1 -- true").status.code(), Some(75));
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "it did not wait for ever, which is the default"
        );
    });
}

#[test]
fn a_job_runs_once_in_a_period() {
    rerun_if_starved(|| {
        let store = Store::file();
        let runs = store.path("runs");
        let command = store.script("job", &format!("#!/bin/sh\necho run >> {}\n", runs.display()));
        // A period may end while we are at it: then there are two.
        for _ in 0..10 {
            let ended = store.run(&format!("--lock job --every 24h -- {command}"));
            assert_eq!(ended.status.code(), Some(0));
        }
        let ran = written(&runs).lines().count();
        assert!((1..=2).contains(&ran), "it ran {ran} times");
    });
}

#[test]
fn a_rate_is_kept() {
    rerun_if_starved(|| {
        let store = Store::file();
        for code in [0, 0, 75] {
            let ended = store.run("--rate api:2/1h --wait 0 -- true");
            assert_eq!(ended.status.code(), Some(code));
        }
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(store.run("--rate other:1/200ms -- true").status.code(), Some(0));
        }
        assert!(start.elapsed() >= Duration::from_millis(400));
    });
}

#[test]
fn a_lock_is_released_before_the_commands_end_if_asked() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut long = store.runs("--lock x --release-after 100ms");
        assert_eq!(store.run("--lock x --wait 10s -- true").status.code(), Some(0));
        assert!(long.is_running());
    });
}

/// Nobody loses what he has, and nobody has to wait for those who are gone.
#[test]
fn a_number_is_changed_for_all_or_by_itself_where_nobody_uses_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let code = |words: &str| store.run(&format!("{words} --wait 0 -- true")).status.code();
        let resize = |words: &str| {
            let resized = output(store.coordination(["resize"]).args(words.split(' ')));
            assert_eq!(resized.status.code(), Some(0), "{words}: {}", stderr(&resized));
            assert!(stderr(&resized).contains("for all from now on"), "{}", stderr(&resized));
        };
        for (first, second, resized) in [
            ("--semaphore s:1", "--semaphore s:2", "--semaphore s:2"),
            ("--singleton n", "--singleton n --standby 1", "--singleton n --standby 1"),
            ("--singleton m", "--singleton m --replace", "--singleton m --replace"),
        ] {
            // Nobody is there any more.
            assert_eq!([code(first), code(second), code(first)], [Some(0); 3], "{first}");
            let holder = store.runs(first);
            let refused = store.run(&format!("{second} --wait 0 -- true"));
            assert_eq!(refused.status.code(), Some(64), "{second}");
            let said = stderr(&refused);
            assert!(said.contains(&format!("coordination resize {resized}")), "{said}");
            assert!(!said.contains("see `resize`"), "{said}");
            resize(resized);
            assert_ne!(code(second), Some(64), "{second}");
            assert_eq!(code(first), Some(64), "{first}");
            drop(holder);
        }
        assert_eq!([code("--rate r:1/1h"), code("--rate r:1/1h")], [Some(0), Some(75)]);
        let refused = store.run("--rate r:2/1h --wait 0 -- true");
        assert_eq!(refused.status.code(), Some(64));
        assert!(
            stderr(&refused).contains("coordination resize --rate r:2/3600000ms"),
            "{}",
            stderr(&refused)
        );
        resize("--rate r:2/3600000ms");
        assert_eq!([code("--rate r:2/1h"), code("--rate r:2/1h")], [Some(0), Some(75)]);
    });
}

/// One works, and of those who wait the one that came last.
#[test]
fn a_newcomer_replaces_whoever_stands_by() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut works = store.runs("--singleton job --replace");
        let mut waits = store.start("--member-id first --singleton job --replace -- true");
        let is_there = || {
            let status = output(&mut store.coordination(["status", "job"]));
            stdout(&status).contains("first")
        };
        assert!(wait_until(LONG, is_there));
        let mut last = store.start("--singleton job --replace -- sh -c true");
        assert_eq!(waits.code(), Some(75));
        assert!(works.is_running() && last.is_running());
        works.signal(Signal::TERM);
        works.status();
        assert_eq!(last.code(), Some(0));
    });
}
