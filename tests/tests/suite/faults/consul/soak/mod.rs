//! The fault matrix on `consul://`: a test for each row, or the reason why there is none.
//!
//! Leases are four seconds and heartbeats 300 ms, unless a row needs longer ones.

mod connecting;
mod limits;
mod operator;
mod silence;

use coordination_tests::checks::Backend;
use coordination_tests::faults::matrix;

coordination_tests::fault_rows!(all server Consul);

mod of_three {
    coordination_tests::fault_rows!(all three Consul);
}

/// The rows of the fault matrix for which this folder has no test, and the reason.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the key"),
    (36, "a server without space for its log stops to lead: F-8 is what clients see"),
    (37, "there is no directory; a token without the rights is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("connecting.rs"),
        include_str!("limits.rs"),
        include_str!("operator.rs"),
        include_str!("silence.rs"),
    ];
    matrix::assert_complete(Backend::Consul, &sources, NOT_APPLICABLE);
}
