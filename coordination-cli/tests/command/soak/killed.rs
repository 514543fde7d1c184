//! 500 wrappers are killed on a busy host.

use crate::killed::{Busy, kills};

#[test]
fn five_hundred_beside_ten_busy_processes() {
    // Starved on purpose, and judged all the same: no bound is in it.
    let _busy: Vec<_> = (0..10).map(|_| Busy::start()).collect();
    kills(4, 125);
}
