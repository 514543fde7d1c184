//! The fault matrix on `zookeeper://`: a test for each row, or the reason why there is none.
//!
//! Leases are four seconds and heartbeats 300 ms, unless a row needs longer ones.

mod closing;
mod connecting;
mod crowded;
mod ensemble;
mod removed;
mod rights;

use coordination_tests::checks::Backend;
use coordination_tests::faults::matrix;

coordination_tests::fault_rows!(all server Zookeeper);

mod of_three {
    coordination_tests::fault_rows!(all three Zookeeper);
}

/// The rows of the fault matrix for which this folder has no test, and the reason.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the node"),
    (36, "a server that cannot write its log ends: F-7 and F-8"),
    (37, "there is no directory; a user whom the nodes do not let in is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources =
        [include_str!("connecting.rs"), include_str!("ensemble.rs"), include_str!("rights.rs")];
    matrix::assert_complete(Backend::Zookeeper, &sources, NOT_APPLICABLE);
}
