//! O7, values and counters: their results are possible if operations run one after another.
//!
//! Each object is checked by itself: if each is linearizable, all together are. A value is absent at first, a counter
//! zero. A read without a result says nothing. A write without a result may have taken effect at any time since its
//! call, or never.
//!
//! An object is not checked if the search was given up: see [`undecided`](crate::Report::undecided). That happens only
//! with very many operations at once, or with many whose results are not known.

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
            // The proof: the operations that ran at the same time as the wrong one, and the last few before it.
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
