//! Tests of the checker's rule O3: the fenced resource applies no write of an old holder.

use coordination_history::{Event, Kind, Record, Rule, check};

use crate::story::{breaks, passes, rules, told};

fn write(at: u64, token: u64, value: u64, accepted: bool) -> Record {
    told(at, Event::Write { token, value, accepted })
}

#[test]
fn an_old_holder_writes() {
    let resource = rules(Kind::Other);
    let records = |accepted| {
        [
            write(10, 5, 1, true),
            write(20, 7, 2, true),
            write(30, 5, 3, accepted),
            write(40, 7, 4, true),
        ]
    };
    breaks(Rule::O3, &resource, &records(true));
    passes(&resource, &records(false));
    // The order of two writes with equal times is unknown, so the write with the smaller token may have been the first.
    passes(&resource, &[write(10, 7, 1, true), write(10, 5, 2, true)]);
}

#[test]
fn what_was_applied_is_there() {
    let resource = rules(Kind::Other);
    let records = |kept: &[u64]| {
        let mut records =
            vec![write(10, 5, 1, true), write(20, 7, 2, true), write(30, 5, 3, false)];
        records.push(told(50, Event::Final { values: kept.len() as u64 }));
        records.extend(kept.iter().map(|value| told(51, Event::Kept { value: *value })));
        records
    };
    passes(&resource, &records(&[1, 2]));
    breaks(Rule::O3, &resource, &records(&[2]));
    breaks(Rule::O3, &resource, &records(&[]));
    breaks(Rule::O3, &resource, &records(&[1, 2, 3]));
}

#[test]
fn an_end_told_in_part_says_nothing() {
    let records =
        [write(10, 5, 1, true), write(20, 7, 2, true), told(50, Event::Final { values: 2 })];
    let report = check(&records, &rules(Kind::Other));
    assert!(report.broken.is_empty() && report.misfits == 1, "{report}");
}
