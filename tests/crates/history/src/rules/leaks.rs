//! O6: nothing is left at the store.
//!
//! Whoever runs the test waits until all that was killed has expired, counts the entries of each object, and writes
//! [`Remains`](crate::Event::Remains). Not proved: anything about an object that was not counted.

use super::Found;
use crate::record::Event;
use crate::report::Rule;
use crate::timeline::Scope;

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    for index in &scope.told {
        if let Event::Remains { entries: 1.. } = found.timeline.records[*index].event {
            found.add(Rule::O6, scope.object, "entries are left behind", &[*index]);
        }
    }
}
