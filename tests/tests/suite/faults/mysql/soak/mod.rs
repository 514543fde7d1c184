//! The fault matrix on `mysql://`: a test for each row, or the reason why there is none.
//!
//! Leases are two seconds and heartbeats 300 ms, unless a row needs others.

mod certificates;
mod faulty;
mod load;
mod replicas;
mod shared;

use std::time::Duration;

use coordination_tests::checks::Backend;
use coordination_tests::faults::matrix;
use coordination_tests::harness::Mysql;

coordination_tests::fault_rows!(all server Mysql);

crate::sql::faults::sql_rows!(Mysql);

/// The timeout of waits; longer than any of them should take.
const LONG: Duration = Duration::from_secs(30);

/// The rows of the fault matrix for which this folder has no test, and the reason.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the entry"),
    (37, "there is no directory; a user without the rights is in the check of SEC-7"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [include_str!("replicas.rs"), include_str!("../../../sql/faults/space.rs")];
    matrix::assert_complete(Backend::Mysql, &sources, NOT_APPLICABLE);
}
