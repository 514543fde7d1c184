//! The fault matrix on `file://`: a test for each row, or the reason why there is none.

mod damage;
mod disk;
mod namespaces;
mod stopped;

use std::time::Duration;

use coordination_tests::{
    checks::Backend,
    faults::{Site, crash, matrix},
    harness::{Scratch, rerun_if_starved},
};

/// The rows of the fault matrix for which this folder has no test, and the reason.
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
    (14, "there is no network; the storm kills a process each second, at any step, instead"),
    (22, "there is no lease to revoke; F-35 removes the session's directory instead"),
    (23, "`f35_lock_file_unlinked` is the operator who deletes a lock"),
    (38, "no such file system can be mounted here: unit test of `backend/file/directory.rs`"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
    (41, "the checks of C1 and C2, which run on every backend"),
    (48, "there is no server to authenticate, nor a secret in the URL"),
    (69, "there is no host"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [include_str!("mod.rs"), include_str!("damage.rs"), include_str!("disk.rs")];
    matrix::assert_complete(Backend::File, &sources, NOT_APPLICABLE);
}

/// A new directory, and a site whose clients keep their locks in it. The directory is removed at the end of the test.
fn site() -> (Scratch, Site) {
    let scratch = Scratch::new("faults-file");
    let site = Site::file(&scratch.join("locks"), WORKER);
    (scratch, site)
}

use crate::WORKER;

coordination_tests::fault_rows!(gate files File);

/// A holder may be paused for any length of time and keeps its lock, because there is no lease.
#[test]
fn f03_holder_paused_long() {
    rerun_if_starved(|| {
        let (_scratch, site) = site();
        crash::holder_paused_keeps(&site, Duration::from_secs(6));
    });
}

#[test]
fn f05_holder_paused_briefly() {
    rerun_if_starved(|| {
        let (_scratch, site) = site();
        crash::holder_paused_keeps(&site, Duration::from_millis(500));
    });
}
