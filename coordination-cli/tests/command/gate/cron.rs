//! Jobs of several crontabs: one that stands by takes over from one that is killed.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use coordination_tests::harness::{judged, wait_until};
use rustix::process::Signal;

use crate::{LONG, Store, written};

/// The bound of L1 on one host is 50 ms; the rest is for processes to start on a busy machine.
const TAKEOVER: Duration = Duration::from_millis(100);

#[test]
fn the_next_one_takes_over_from_one_that_is_killed() {
    judged(|| {
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
