//! Tests of the checker's rule O6: no entries are left at the store.

use coordination_history::{Event, Rule};

use crate::story::{breaks, lock, passes, told};

#[test]
fn entries_that_remain() {
    breaks(Rule::O6, &lock(), &[told(10, Event::Remains { entries: 1 })]);
    passes(&lock(), &[told(10, Event::Remains { entries: 0 })]);
}
