//! O7, values and counters: their results have to be possible if the operations run one after another.
//!
//! Each object is checked alone, because a history is linearizable if the history of each object is. A value is absent
//! at first, and a counter is zero at first. A read without a result is ignored. A write without a result may have
//! taken effect at any time since its call, or never.
//!
//! If the search is given up, the object counts as [`undecided`](crate::Report::undecided). This happens only if very
//! many operations ran at once, or if the results of many are unknown.

use super::Found;
use super::linear::{Verdict, search};
use super::models::{Counter, Register};
use crate::record::{Answer, Operation};
use crate::report::Rule;
use crate::timeline::{Scope, Small};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    let (mut counter, mut value) = (Vec::new(), Vec::new());
    for small in &scope.operations {
        match (small.what, small.answer) {
            (_, Answer::NotDone)
            | (Operation::Leader, _)
            | (Operation::Read | Operation::Count, Answer::Unknown) => {}
            (Operation::Add { .. } | Operation::Count, _) => counter.push(*small),
            _ => value.push(*small),
        }
    }
    conclude(scope, &value, search::<Register>, found);
    conclude(scope, &counter, search::<Counter>, found);
}

fn conclude(
    scope: &Scope<'_>,
    operations: &[Small],
    search: fn(&[Small]) -> Verdict,
    found: &mut Found<'_>,
) {
    if operations.is_empty() {
        return;
    }
    match search(operations) {
        Verdict::Linearizable => {}
        Verdict::Undecided => found.report.undecided += 1,
        Verdict::Not(place) => {
            let wrong = &operations[place];
            // As proof the report lists the operations that ran at the same time as the wrong one, and up to four that
            // returned before it.
            let met = operations.iter().filter(|other| other.call <= wrong.returned);
            let mut met: Vec<_> = met.map(|other| (other.returned, other.index)).collect();
            met.sort_unstable();
            let near = met.partition_point(|(returned, _)| *returned < wrong.call);
            let met = met.into_iter().skip(near.saturating_sub(4)).map(|(_, index)| index);
            let mut proof: Vec<_> = met.filter(|index| *index != wrong.index).take(24).collect();
            proof.push(wrong.index);
            found.add(Rule::O7, scope.object, "no order explains the last answer", &proof);
        }
    }
}
