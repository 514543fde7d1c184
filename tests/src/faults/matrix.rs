//! The list of fault rows, so that a row without a test is noticed.

use super::rows::SHARED;
use crate::checks::Backend;

/// The numbers of the rows that need a test, or a reason, on each store.
pub const ROWS: [u32; 31] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 22, 23, 29, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 46, 48, 51, 69,
];

/// Asserts that each row has a test on this store, named `f01_…`, or a reason why it has none. The test may be in
/// [`fault_rows!`](crate::fault_rows), in `crowd.rs` for all stores, or in one of `sources`.
///
/// # Panics
///
/// If a row has neither a test nor a reason, or has both.
pub fn assert_complete(backend: Backend, sources: &[&str], reasons: &[(u32, &str)]) {
    for row in ROWS {
        let name = format!("f{row:02}_");
        let is_shared = SHARED.iter().any(|(row, on)| row.starts_with(&name) && backend.is_in(on));
        let is_in = |source: &str| source.contains(&format!("fn {name}"));
        let is_own = sources.iter().any(|source| is_in(source));
        let has_test =
            is_shared || is_own || is_in(include_str!("../../tests/suite/soak/crowd.rs"));
        let reason = reasons.iter().find(|(number, _)| *number == row).map(|(_, reason)| *reason);
        assert!(reason.is_none_or(|reason| !reason.is_empty()), "F-{row}: the reason is empty");
        assert_ne!(has_test, reason.is_some(), "F-{row} needs a test or a reason, and not both");
    }
}
