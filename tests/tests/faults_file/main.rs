//! The fault matrix on `file://`: a test for each row, or the reason why there is none.

mod damage;
mod disk;

use std::time::Duration;

use coordination_tests::{
    faults::{Site, crash, guards, identity, matrix},
    harness::Scratch,
};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// Rows without a test here, and why.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (4, "a session is a locked file: no reply of a heartbeat extends anything"),
    (6, "a session is a locked file: it does not depend on a task that runs"),
    (7, "there is no server"),
    (8, "there is no server"),
    (9, "there is no server"),
    (10, "there is no server"),
    (11, "there is no network"),
    (12, "there is no network"),
    (13, "there is no network"),
    (14, "there is no network; `crash_points` kill at every step of the conversation instead"),
    (22, "there is no lease to revoke; F-35 removes the session's directory instead"),
    (23, "`f35_lock_file_unlinked` is the operator who deletes a lock"),
    (38, "no such file system can be mounted here: unit test of `backend/file/directory.rs`"),
    (40, "needs `fork`: the check of contract C9, which runs on every backend"),
    (41, "the checks of contract C1 and C2, which run on every backend"),
    (48, "there is no server to authenticate, nor a secret in the URL"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("main.rs"),
        include_str!("../crowd.rs"),
        include_str!("damage.rs"),
        include_str!("disk.rs"),
    ];
    matrix::assert_complete(&sources, NOT_APPLICABLE);
}

/// A directory that is gone with the test, and the site in it.
fn site() -> (Scratch, Site) {
    let scratch = Scratch::new("faults-file");
    let site = Site::file(&scratch.join("locks"), WORKER);
    (scratch, site)
}

#[test]
fn f01_holder_killed() {
    let (_scratch, site) = site();
    println!("F-1 file: free after {:?}", crash::holder_killed(&site));
}

#[test]
fn f02_waiters_killed() {
    let (_scratch, site) = site();
    println!("F-2 file: both served after {:?}", crash::waiters_killed(&site));
}

/// No lease runs out, however long.
#[test]
fn f03_holder_paused_long() {
    let (_scratch, site) = site();
    crash::holder_paused_keeps(&site, Duration::from_secs(6));
}

#[test]
fn f05_holder_paused_briefly() {
    let (_scratch, site) = site();
    crash::holder_paused_keeps(&site, Duration::from_millis(500));
}

#[tokio::test(flavor = "multi_thread")]
async fn f39_children_spawned_while_held() {
    let (_scratch, site) = site();
    guards::spawned_children(&site, 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f42_release_after_loss() {
    let (_scratch, site) = site();
    guards::release_after_loss(&site).await;
}

#[test]
fn f43_exit_with_a_guard() {
    let (_scratch, site) = site();
    println!("F-43 file: free {:?} after the exit", crash::holder_exits(&site));
}

#[test]
fn f43_runtime_dropped() {
    let (_scratch, site) = site();
    guards::runtime_dropped(&site);
}

#[test]
fn f43_tied_runtime_dropped() {
    let (_scratch, site) = site();
    guards::tied_runtime_dropped(&site);
}

#[test]
fn f46_odd_names() {
    let (_scratch, site) = site();
    identity::odd_names_are_distinct(&site);
}

#[test]
fn f51_member_exists() {
    let (_scratch, site) = site();
    println!("F-51 file: id free {:?} after a death", identity::member_exists(&site));
}
