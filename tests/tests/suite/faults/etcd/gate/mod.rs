//! The fault matrix on `etcd://`: a test for each row, or the reason why there is none.
//!
//! Leases are two seconds and heartbeats 300 ms, unless a row needs longer ones.

mod authentication;
mod connecting;
mod space;
mod tokens;

use coordination_tests::checks::Backend;
use coordination_tests::faults::matrix;

coordination_tests::fault_rows!(gate server Etcd);

/// The rows of the fault matrix for which this folder has no test, and the reason.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the key"),
    (37, "there is no directory; a role without the permission is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("authentication.rs"),
        include_str!("connecting.rs"),
        include_str!("space.rs"),
        include_str!("tokens.rs"),
    ];
    matrix::assert_complete(Backend::Etcd, &sources, NOT_APPLICABLE);
}
