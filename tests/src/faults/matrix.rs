//! The list of rows, so that none is left out unnoticed.

/// The rows that the fault tests cover, by number.
pub const ROWS: [u32; 29] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 22, 23, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44,
    46, 48, 51,
];

/// Asserts that each row has either a test in `sources`, named `f01_…`, or a reason why not.
///
/// # Panics
///
/// When a row has neither, or both.
pub fn assert_complete(sources: &[&str], reasons: &[(u32, &str)]) {
    for row in ROWS {
        let name = format!("fn f{row:02}_");
        let has_test = sources.iter().any(|source| source.contains(&name));
        let reason = reasons.iter().find(|(number, _)| *number == row).map(|(_, reason)| *reason);
        assert!(reason.is_none_or(|reason| !reason.is_empty()), "F-{row}: the reason is empty");
        assert_ne!(has_test, reason.is_some(), "F-{row} needs a test or a reason, and not both");
    }
}
