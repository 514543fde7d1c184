//! Tests of the report's text and numbers.

use coordination_history::{Event, Record, check};

use crate::story::{CALL, NOT_FREE, TRY, granted, lock, of, told, whole};

#[test]
fn the_summary() {
    let mut rules = lock();
    rules.faults = vec!["cut".into()];
    let mut records = whole(1, 5, 10, 31, granted(1));
    records.extend(whole(2, 6, 30, 50, granted(2)));
    records.extend([of(3, 8, TRY), of(3, 9, NOT_FREE), of(4, 7, CALL), of(5, 7, CALL)]);
    records.push(of(4, 60, Event::Cancelled));
    records.push(told(70, Event::Fault { kind: 0 }));
    records.push(told(71, Event::Fault { kind: 8 }));
    let report = check(&records, &rules).to_string();
    let lines = [
        "records     17 over 0.000066 ms",
        "attempts    5: 2 granted, 1 NotFree, 1 cancelled, 1 unanswered",
        "grants      2 released, 0 lost",
        "is_held     2 true, 0 false",
        "  cut                      1",
        "  fault 8                  1",
        "violations  1",
        "  O1 1",
        "O1: it: two hold at once, for 0.000001 ms at least",
        "             0.000000030 client 2 attempt 1 object 1: granted, token 2",
    ];
    for line in lines {
        assert!(report.contains(line), "{line}\n{report}");
    }
}

#[test]
fn misfits() {
    let count = |records: &[Record]| check(records, &lock()).misfits;
    let call = of(1, 5, CALL);
    assert_eq!(count(&[call, of(1, 10, granted(1))]), 0);
    assert_eq!(count(&[call, of(1, 10, granted(1)), of(1, 11, granted(2))]), 1);
    assert_eq!(count(&[call, of(1, 10, granted(1)), of(1, 11, NOT_FREE)]), 1);
    assert_eq!(count(&[call, Record { object: 7, ..of(1, 10, granted(1)) }]), 1);
    assert_eq!(count(&[Record { attempt: 0, ..call }]), 1);
    assert_eq!(count(&[of(1, 10, granted(1))]), 1, "without a call");
    assert_eq!(count(&[call, of(1, 10, Event::ReleaseCall)]), 1, "without a grant");
}
