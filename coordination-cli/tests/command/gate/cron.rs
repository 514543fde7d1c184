//! Jobs of several crontabs: one that stands by takes over from one that is killed.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::crontab::{Case, as_promised};
use crate::{LONG, Store, written};

/// The bound of L1 on one host is 50 ms; the rest is for processes to start on a busy machine.
const TAKEOVER: Duration = Duration::from_millis(100);

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
        let mut took = Vec::new();
        for round in 0..20 {
            let (first, second) =
                (store.path(&format!("first-{round}")), store.path(&format!("second-{round}")));
            let script = |path: &std::path::Path, then: &str| {
                let name =
                    path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
                let text = format!("#!/bin/sh\ndate +%s%N > {}\n{then}\n", path.display());
                store.script(&format!("{name}.sh"), &text)
            };
            let holder = store.start(&format!(
                "--singleton job --standby 1 -- {}",
                script(&first, "exec sleep 60")
            ));
            written(&first);
            let mut standby =
                store.start(&format!("--singleton job --standby 1 -- {}", script(&second, "")));
            thread::sleep(Duration::from_millis(100));
            let killed = nanos(
                &Command::new("date")
                    .arg("+%s%N")
                    .stdout(Stdio::piped())
                    .output()
                    .expect("date")
                    .stdout,
            );
            holder.signal(Signal::KILL);
            assert_eq!(standby.code(), Some(0));
            assert!(wait_until(LONG, || second.exists()));
            took.push(Duration::from_nanos(
                nanos(written(&second).as_bytes()).saturating_sub(killed),
            ));
        }
        took.sort_unstable();
        println!(
            "taken over after {:?} in the middle, {:?} at worst",
            took[took.len() / 2],
            took[took.len() - 1]
        );
        assert!(took[took.len() / 2] < TAKEOVER, "{took:?}");
        assert!(took[took.len() - 1] < 10 * TAKEOVER, "{took:?}");
    });
}

fn nanos(text: &[u8]) -> u64 {
    String::from_utf8_lossy(text).trim().parse().expect("a number")
}
