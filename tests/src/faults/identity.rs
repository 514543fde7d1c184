//! F-46, F-51: odd names of locks, and member ids that are in use.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Process, Site};
use crate::bounds;
use crate::harness::wait_until;

/// Names that are different but look alike, or have a special meaning for some store.
pub fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        ".",
        "..",
        "/",
        "//",
        "../x",
        "\0",
        "\n",
        "a\nb",
        "%",
        "%2F",
        "%252F",
        "\"",
        "'",
        "`",
        "'; DROP TABLE locks; --",
        "🔒",
        "é",
        "e\u{301}",
        "É",
        "case",
        "Case",
        "CASE",
        "trailing",
        "trailing ",
        " trailing",
        "-leading",
        "--help",
        "a",
        "a/b",
        "ab",
        "a/",
        "/a",
        "a b",
        "a\tb",
        "h~",
        "~",
        "lock",
        "in-use",
        "*",
        "?",
        "{tag}",
        "\u{feff}a",
        "\u{200b}a",
        "\\",
        "\r",
    ]
    .map(str::to_owned)
    .into();
    // Names just below and above the length from which a name is stored by its hash, and names of the greatest length.
    names.extend([199, 200, 201, 255, 256, 1_023, 1_024].map(|length| "n".repeat(length)));
    names.push(format!("{}m", "n".repeat(1_023)));
    names
}

/// F-46: all odd names are held at the same time, and each excludes another process.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f46_odd_names(site: &Site) {
    let (ours, theirs) = (site.process("ours"), site.process("theirs"));
    let names = odd_names();
    for name in &names {
        assert!(ours.try_acquire(name).is_some(), "{name:?} is taken by another name");
    }
    for name in &names {
        assert!(theirs.try_acquire(name).is_none(), "{name:?} is granted to two");
        // The entry of the failed try is removed in the background.
        theirs.sees_contenders(name, 1);
        assert_eq!(theirs.holders(name), ["ours"], "{name:?}");
    }
    for name in &names {
        ours.release(name);
        assert!(theirs.try_acquire(name).is_some(), "{name:?} was not released");
    }
    for name in ["".to_owned(), "n".repeat(1_025), "n".repeat(1 << 20)] {
        let error = ours.acquire_within(&name, Duration::ZERO).expect_err("not a name");
        assert_eq!(error["kind"], "Name", "{error}");
    }
    if site.has_server() {
        assert_eq!(site.entries().len(), names.len());
    }
}

/// F-51: a member id can be used by one live session at a time, and is free again after the death of its process.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f51_member_exists(site: &Site) {
    let (first, second) = (site.process("twin"), Process::unconnected(site));
    let begun = Instant::now();
    let error = second.try_connect(site, "twin").expect_err("the id is in use");
    assert_eq!(error["kind"], "MemberExists", "{error}");
    assert_eq!(error["effect"], "None", "{error}");
    assert!(begun.elapsed() <= bounds::connected());
    first.acquire("identity");
    second.try_connect(site, "other").expect("another id is free");
    first.call(serde_json::json!({ "command": "stop" }));
    let third = Process::unconnected(site);
    third.try_connect(site, "twin").expect("the id is free after a stop");
    // This is long enough for a heartbeat, so that the lease runs for as long as possible after the kill.
    thread::sleep(2 * super::HEARTBEAT);
    third.kill();
    let killed = Instant::now();
    let bound = site.crash_release();
    let freed = wait_until(bound, || second.try_connect(site, "twin").is_ok());
    assert!(freed, "the id of a dead process is in use after {bound:?}");
    println!("F-51 {}: id free {:?} after a death", site.name(), killed.elapsed());
}
