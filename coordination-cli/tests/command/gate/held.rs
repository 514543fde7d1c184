//! What a command can run under, and what it is told of that.

use std::time::{Duration, Instant};

use coordination_tests::harness::judged;

use crate::{Store, stdout, written};

#[test]
fn the_command_knows_what_it_holds() {
    judged(|| {
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
    judged(|| {
        let store = Store::file();
        let _shares: Vec<_> =
            (0..2).map(|nth| store.runs(&format!("--lock x --shared --wait {nth}0s"))).collect();
        assert_eq!(store.run("--lock x --wait 0 -- true").status.code(), Some(75));
        assert_eq!(store.run("--lock x --shared --wait 0 -- true").status.code(), Some(0));
    });
}

#[test]
fn a_semaphore_has_as_many_permits_as_it_says() {
    judged(|| {
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
    judged(|| {
        let store = Store::file();
        let _works = store.runs("--singleton job --standby 1");
        let mut stands_by = store.start("--singleton job --standby 1 -- true");
        std::thread::sleep(Duration::from_millis(500));
        assert!(stands_by.is_running());
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
    judged(|| {
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
    judged(|| {
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
    judged(|| {
        let store = Store::file();
        let mut long = store.runs("--lock x --release-after 100ms");
        assert_eq!(store.run("--lock x --wait 10s -- true").status.code(), Some(0));
        assert!(long.is_running());
    });
}
