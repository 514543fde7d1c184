//! Processes that run in containers on one host, and share the directory of the locks. Their process ids and clocks
//! may differ from those outside the containers.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use coordination_tests::must_hold;
use coordination_tests::{
    checks::Backend,
    faults::{LONG, Site},
    harness::{Scratch, rerun_if_starved, write_script},
};
use serde_json::json;

use crate::WORKER;

const LOCK: &str = "shared";

/// A copy of `site` whose client processes are started by `command`, which puts them into a container.
fn under(site: &Site, scratch: &Scratch, command: &str) -> Site {
    let script = scratch.join("contained");
    let text = format!("#!/bin/sh\nexec {command} -- {WORKER} \"$@\"\n");
    write_script(&script, &text);
    let mut contained = site.clone();
    contained.worker = script.display().to_string();
    contained
}

/// Each process has the process id 1 in its container.
#[test]
fn process_ids_of_containers_are_not_mixed_up() {
    rerun_if_starved(|| {
        let (site, scratch) = (Site::start(Backend::File, 1, WORKER), Scratch::new("contained"));
        let contained = under(&site, &scratch, "unshare --pid --fork --kill-child --mount-proc");
        let (holder, waiter) = (contained.process("holder"), contained.process("waiter"));
        let ids =
            [&holder, &waiter].map(|each| each.call(json!({ "command": "ping" }))["pid"].clone());
        assert_eq!(ids, [json!(1), json!(1)]);
        let outside = site.process("outside");
        let first = holder.acquire(LOCK);
        assert!(waiter.try_acquire(LOCK).is_none() && outside.try_acquire(LOCK).is_none());
        let waiting = waiter.wait_for(LOCK);
        outside.sees_contenders(LOCK, 2);
        holder.kill();
        must_hold!(waiter.granted(waiting, LONG).token > first.token);
        assert!(outside.try_acquire(LOCK).is_none());
    });
}

/// A process without `/proc` reaches no socket, and wakes all who wait when it lets go. A waiter that it did not wake would look again
/// after three seconds or more.
#[test]
fn who_lets_go_without_proc_wakes_the_next() {
    rerun_if_starved(|| {
        let (site, scratch) = (Site::start(Backend::File, 1, WORKER), Scratch::new("contained"));
        let command = "unshare --mount sh -c 'mount -t tmpfs none /proc && exec \"$@\"'";
        let bare = under(&site, &scratch, command);
        let (holder, waiter) = (bare.process("holder"), site.process("waiter"));
        holder.acquire(LOCK);
        let waiting = waiter.wait_for(LOCK);
        holder.sees_contenders(LOCK, 2);
        // Until the waiter has its socket, it would look by itself.
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        holder.release(LOCK);
        waiter.granted(waiting, LONG);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

/// Parent and child both have the process id 1, each in its own pid namespace, so the library cannot tell them apart
/// by that id.
#[test]
fn c9_a_forked_child_with_the_number_of_its_parent() {
    rerun_if_starved(|| {
        let site = Site::start(Backend::File, 1, WORKER);
        let contained = ["--pid", "--fork", "--kill-child", "--mount-proc", "--"];
        let mut command = Command::new("unshare");
        command.args(contained).args([env!("CARGO_BIN_EXE_forker"), &site.url, LOCK]);
        let report = command.env("FORKER_APART", "1").output().expect("it starts");
        let text = String::from_utf8_lossy(&report.stdout);
        let errors = String::from_utf8_lossy(&report.stderr);
        assert!(report.status.success(), "{}\n{text}\n{errors}", report.status);
        for expected in ["child: held false", "child: release refused", "parent: held true"] {
            assert!(text.contains(expected), "{expected:?} is not in:\n{text}\n{errors}");
        }
    });
}

/// One container's monotonic clock is eleven days ahead of the host's, although both have the same boot id.
#[test]
fn clocks_of_containers_are_not_mixed_up() {
    rerun_if_starved(|| {
        let (site, scratch) = (Site::start(Backend::File, 1, WORKER), Scratch::new("contained"));
        let ahead = under(&site, &scratch, "unshare --time --boottime 950400");
        let (ahead, here) = (ahead.process("ahead"), site.process("here"));
        let rate = |n| json!({ "command": "rate", "limiter": "requests", "permits": 1, "per_ms": 25, "n": n });
        ahead.call(rate(1));
        let begun = Instant::now();
        here.call(rate(40));
        ahead.call(rate(1));
        let took = begun.elapsed();
        // 42 permits have 41 windows between the first and the last.
        assert!(took >= Duration::from_millis(950), "{took:?}");
        // Ten times the expected time. If a clock were misread, each wait would be longer than the one before.
        assert!(took < Duration::from_secs(10), "{took:?}");
    });
}
