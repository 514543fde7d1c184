//! Jobs of several crontabs: one that stands by takes over from one that is killed.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::crontab::{Case, as_promised};
use crate::{LONG, Store, output, stdout, written};

/// The bound of L1 on one host. How long the processes take to start is measured: by a command whose lock is free.
const RELEASED: Duration = Duration::from_millis(50);

#[test]
fn each_line_runs_as_often_as_promised() {
    rerun_if_starved(|| as_promised(&Case::all(&[300], &[100])));
}

#[test]
fn a_run_that_ended_badly_leaves_the_period_to_the_next() {
    rerun_if_starved(|| {
        let store = Store::file();
        let every = |hold: &str, job: &str| {
            store.run(&format!("{hold} --every 8784h -- {job}")).status.code()
        };
        for hold in ["--lock a", "--lock b --shared", "--semaphore c:2", "--singleton d"] {
            assert_eq!([every(hold, "false"), every(hold, "false")], [Some(1); 2], "{hold}");
            assert_eq!(every(hold, "true"), Some(0), "{hold}");
            assert_eq!(every(hold, "false"), Some(0), "it is done: {hold}");
        }
        // While one of those who share it is at it, it is nobody else's.
        let (holder, _) = store.running("--semaphore e:2 --every 8784h");
        assert_eq!(every("--semaphore e:2", "false"), Some(0));
        drop(holder);
        assert!(wait_until(LONG, || every("--semaphore e:2", "false") == Some(1)), "he has died");
        assert_eq!(every("--semaphore e:2", "true"), Some(0));
        // What is released is done.
        let released = "--lock f --release-after 1ms --every 8784h -- sleep 0.5";
        assert_eq!(store.run(released).status.code(), Some(0));
        assert_eq!(every("--lock f", "false"), Some(0));
    });
}

#[test]
fn a_run_that_is_forgotten_is_made_again() {
    rerun_if_starved(|| {
        let store = Store::file();
        let job = || store.run("--lock a --every 8784h -- false").status.code();
        let reset = || {
            let mut command = store.coordination(["reset", "a"]);
            let said = command.output().expect("it starts");
            assert!(said.status.success());
            String::from_utf8_lossy(&said.stderr).into_owned()
        };
        assert!(reset().contains("no run"));
        assert_eq!(store.run("--lock a --every 8784h -- true").status.code(), Some(0));
        assert_eq!(job(), Some(0), "it is done");
        assert!(reset().contains("forgotten"));
        assert_eq!(job(), Some(1));
    });
}

#[test]
fn a_short_job_holds_for_the_time_that_is_asked_for() {
    rerun_if_starved(|| {
        let store = Store::file();
        let job = |name: &str, job: &str| {
            store.run(&format!("--lock {name} --at-least 1h -- {job}")).status.code()
        };
        assert_eq!([job("a", "true"), job("a", "false")], [Some(0); 2]);
        assert_eq!(
            [job("b", "false"), job("b", "true"), job("b", "false")],
            [Some(1), Some(0), Some(0)]
        );
        let (holder, _) = store.running("--lock c --at-least 1h");
        drop(holder);
        assert_eq!(
            [job("c", "false"), job("c", "false")],
            [Some(1), Some(0)],
            "the dead do not count"
        );
    });
}

#[test]
fn the_next_one_takes_over_from_one_that_is_killed() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut took, mut reference) = (Vec::new(), Vec::new());
        let stands_by =
            || stdout(&output(&mut store.coordination(["status", "job"]))).contains("stands by");
        for round in 0..20 {
            let script = |name: &str, then: &str| {
                let path = store.path(&format!("{name}-{round}"));
                let text = format!("#!/bin/sh\ndate +%s%N > {}\n{then}\n", path.display());
                (store.script(&format!("{name}-{round}.sh"), &text), path)
            };
            let ((works, first), (follows, second)) =
                (script("first", "exec sleep 60"), script("second", ""));
            let (free, third) = script("third", "");
            let holder = store.start(&format!("--singleton job --standby 1 -- {works}"));
            written(&first);
            let mut standby = store.start(&format!("--singleton job --standby 1 -- {follows}"));
            assert!(wait_until(LONG, stands_by), "it does not stand by");
            let begun = now();
            assert_eq!(store.run(&format!("--lock free -- {free}")).status.code(), Some(0));
            reference.push(between(begun, &third));
            let killed = now();
            holder.signal(Signal::KILL);
            assert_eq!(standby.code(), Some(0));
            took.push(between(killed, &second));
        }
        took.sort_unstable();
        reference.sort_unstable();
        let (middle, worst) = (took[took.len() / 2], took[took.len() - 1]);
        let bound = RELEASED + reference[reference.len() / 2];
        println!("taken over after {middle:?} in the middle, {worst:?} at worst; bound {bound:?}");
        assert!(middle < bound, "{took:?}, and {reference:?} where nobody is waited for");
        assert!(worst < 10 * bound, "{took:?}, and {reference:?} where nobody is waited for");
    });
}

/// By the clock of `date`, in nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(now.as_nanos()).expect("it is before 2554")
}

/// The time from this moment until the one that was written to this file.
fn between(begun: u64, path: &Path) -> Duration {
    let end: u64 = written(path).trim().parse().expect("a number");
    Duration::from_nanos(end.saturating_sub(begun))
}
