//! O3: the fenced resource behind the lock.
//!
//! The resource writes its own records, in the order in which it decides on the writes. The checker reports
//!
//! * a write that the resource applied after a write with a larger token: an old holder wrote after a new one;
//! * a value that the resource applied but does not have at the end, or that it refused but has at the end. This is
//!   checked only if the history has a record [`Final`](crate::Event::Final).
//!
//! A resource that does not compare tokens must not write such records, because a lock cannot protect it.

use std::collections::HashSet;

use super::{ENOUGH, Found};
use crate::record::Event;
use crate::report::Rule;
use crate::timeline::Scope;

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    let applied = rising(scope, found);
    kept(scope, &applied, found);
}

/// Checks that the tokens of applied writes never fall. Returns the values of all applied writes.
fn rising(scope: &Scope<'_>, found: &mut Found<'_>) -> HashSet<u64> {
    let records = &found.timeline.records;
    let mut applied = HashSet::new();
    let mut stale = Vec::new();
    // `before` is the largest token of all writes before the time `now`, and `here` is the largest token of the writes
    // at `now`; each has the index of its record. The order of records with equal times is unknown. So a write is
    // compared only with `before`, and not with `here`.
    let (mut before, mut here, mut now) = ((0, usize::MAX), (0, usize::MAX), 0);
    for index in &scope.told {
        let record = &records[*index];
        let Event::Write { token, value, accepted: true } = record.event else { continue };
        applied.insert(value);
        if record.at > now {
            (before, now) = (before.max(here), record.at);
        }
        if token < before.0 {
            stale.push((before.1, *index));
        }
        if token > here.0 {
            here = (token, *index);
        }
    }
    for (newer, older) in stale.into_iter().take(ENOUGH as usize) {
        found.add(Rule::O3, scope.object, "an old holder's write was applied", &[newer, older]);
    }
    applied
}

fn kept(scope: &Scope<'_>, applied: &HashSet<u64>, found: &mut Found<'_>) {
    let records = &found.timeline.records;
    let told = || scope.told.iter().map(|index| (*index, records[*index].event));
    let total = told().filter_map(|(_, event)| match event {
        Event::Final { values } => Some(values),
        _ => None,
    });
    let Some(total) = total.max() else { return };
    let mut kept = HashSet::new();
    kept.extend(told().filter_map(|(_, event)| match event {
        Event::Kept { value } => Some(value),
        _ => None,
    }));
    let wrong = told().filter_map(|(index, event)| match event {
        Event::Write { value, accepted: true, .. } if !kept.contains(&value) => {
            Some((index, "an applied write is not there at the end"))
        }
        Event::Write { value, accepted: false, .. }
            if kept.contains(&value) && !applied.contains(&value) =>
        {
            Some((index, "a refused write is there at the end"))
        }
        _ => None,
    });
    let wrong: Vec<_> = wrong.take(ENOUGH as usize).collect();
    if kept.len() as u64 != total {
        // Some values have no `Kept` record, so a value without a `Kept` record may be in the resource nevertheless.
        found.report.misfits += 1;
        return;
    }
    for (index, what) in wrong {
        found.add(Rule::O3, scope.object, what, &[index]);
    }
}
