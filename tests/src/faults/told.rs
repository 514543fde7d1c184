//! Asserts that guards report losses in time.

use std::sync::LazyLock;
use std::time::Duration;

use super::crash::since;
use crate::bounds;
use crate::harness::{SchedulerLag, log::now_ns};

/// How long the machine keeps threads waiting for a processor, measured from the creation of the first site on.
static PULSE: LazyLock<SchedulerLag> = LazyLock::new(SchedulerLag::start);

/// Starts the measurement of `PULSE`; does nothing if it has started already.
pub(super) fn begin() {
    LazyLock::force(&PULSE);
}

/// Asserts that a loss that could be known at `from_ns` was reported in time, with an allowance for processor time that
/// the machine withheld. Returns how long it took.
///
/// # Panics
///
/// If the loss was reported later.
#[track_caller]
pub fn assert_told(from_ns: u64, told_ns: u64) -> Duration {
    assert_told_within(bounds::told(), from_ns, told_ns)
}

/// Like [`assert_told`] with another bound, for instance on a store that reports removed entries late (T3).
///
/// # Panics
///
/// If the loss was reported later.
#[track_caller]
pub fn assert_told_within(bound: Duration, from_ns: u64, told_ns: u64) -> Duration {
    let (told, withheld) = (since(from_ns, told_ns), PULSE.allowance(from_ns, now_ns()));
    assert!(told <= bound + withheld, "told only after {told:?}, {withheld:?} allowed for");
    told
}
