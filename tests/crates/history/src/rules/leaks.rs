//! O6: no entries are left at the store.
//!
//! At its end the test waits until all entries of killed clients have expired. Then it counts the entries of each
//! object at the store and writes the number as [`Remains`](crate::Event::Remains). An object without such a record is
//! not checked.

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
