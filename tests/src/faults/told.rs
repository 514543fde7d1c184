//! Whether a loss was told in time.

use std::sync::LazyLock;
use std::time::Duration;

use super::crash::since;
use crate::bounds;
use crate::harness::{SchedulerLag, log::now_ns};

/// Beats from the first site on.
static PULSE: LazyLock<SchedulerLag> = LazyLock::new(SchedulerLag::start);

/// From here on the machine is listened to.
pub(super) fn begin() {
    LazyLock::force(&PULSE);
}

/// A loss that could be known from then on was told at once, apart from what the machine withheld. Answers how
/// long it took.
///
/// # Panics
///
/// When it was told later.
#[track_caller]
pub fn assert_told(from_ns: u64, told_ns: u64) -> Duration {
    assert_told_within(bounds::told(), from_ns, told_ns)
}

/// The same within another bound, such as a store's for what it is not told of at once (T3).
///
/// # Panics
///
/// When it was told later.
#[track_caller]
pub fn assert_told_within(bound: Duration, from_ns: u64, told_ns: u64) -> Duration {
    let (told, withheld) = (since(from_ns, told_ns), PULSE.allowance(from_ns, now_ns()));
    assert!(told <= bound + withheld, "told only after {told:?}, {withheld:?} allowed for");
    told
}
