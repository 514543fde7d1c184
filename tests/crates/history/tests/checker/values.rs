//! Tests of the checker's rule O7, linearizability, for values and counters.

use coordination_history::{Answer, Event, Kind, NEVER, Operation, Record, Rule, check};
use proptest::prelude::*;

use crate::story::{breaks, passes, rules, small};

fn set(call: u64, at: u64, value: u32, version: u64) -> Record {
    small(1, call, at, Operation::Set { value }, Answer::Written { version })
}

fn read(call: u64, at: u64, value: u32, version: u64) -> Record {
    let answer = if value == 0 { Answer::Absent } else { Answer::Value { version, value } };
    small(2, call, at, Operation::Read, answer)
}

fn compare_and_set(call: u64, at: u64, expected: u64, value: u32, version: u64) -> Record {
    let answer = if version == 0 { Answer::Mismatch } else { Answer::Written { version } };
    small(3, call, at, Operation::CompareAndSet { expected, value }, answer)
}

fn count(call: u64, at: u64, number: i64) -> Record {
    small(2, call, at, Operation::Count, Answer::Number(number))
}

fn add(call: u64, at: u64, answer: Answer) -> Record {
    small(1, call, at, Operation::Add { by: 2 }, answer)
}

fn good(records: &[Record]) {
    passes(&rules(Kind::Other), records);
}

fn bad(records: &[Record]) {
    breaks(Rule::O7, &rules(Kind::Other), records);
}

#[test]
fn a_read_sees_what_was_written_before() {
    bad(&[set(10, 20, 7, 1), read(21, 25, 0, 0)]);
    good(&[set(10, 20, 7, 1), read(20, 25, 0, 0)]);
    good(&[set(10, 20, 7, 1), read(21, 25, 7, 1)]);
    bad(&[set(10, 20, 7, 1), read(21, 25, 7, 2)]);
    bad(&[set(10, 20, 7, 1), read(21, 25, 8, 1)]);
    bad(&[set(10, 20, 7, 1), set(21, 30, 8, 2), read(31, 35, 7, 1)]);
    bad(&[read(5, 9, 7, 1), set(10, 20, 7, 1)]);
}

#[test]
fn reads_do_not_go_back() {
    let writes = [set(10, 20, 7, 1), set(30, 60, 8, 2)];
    let reads = |one, other| [&writes[..], &[one, other]].concat();
    good(&reads(read(31, 35, 7, 1), read(36, 40, 8, 2)));
    bad(&reads(read(31, 35, 8, 2), read(36, 40, 7, 1)));
    good(&reads(read(31, 36, 8, 2), read(36, 40, 7, 1)));
}

#[test]
fn versions_rise() {
    bad(&[set(10, 20, 7, 5), set(21, 30, 8, 4)]);
    bad(&[set(10, 20, 7, 5), set(21, 30, 8, 5)]);
    good(&[set(10, 20, 7, 5), set(20, 30, 8, 4)]);
}

#[test]
fn one_of_two_who_compare_is_first() {
    let first = set(1, 2, 1, 1);
    good(&[first, compare_and_set(10, 20, 1, 7, 2), compare_and_set(11, 19, 1, 8, 0)]);
    bad(&[first, compare_and_set(10, 20, 1, 7, 2), compare_and_set(11, 19, 1, 8, 3)]);
    bad(&[first, compare_and_set(10, 20, 1, 7, 0)]);
    good(&[compare_and_set(10, 20, 0, 7, 2), compare_and_set(21, 29, 0, 8, 0)]);
    bad(&[compare_and_set(10, 20, 0, 7, 2), compare_and_set(21, 29, 0, 8, 3)]);
}

#[test]
fn deletes() {
    let delete = |call, at, answer| small(4, call, at, Operation::Delete, answer);
    let expecting = |call, at, expected, answer| {
        small(4, call, at, Operation::CompareAndDelete { expected }, answer)
    };
    let first = set(1, 2, 1, 1);
    good(&[first, delete(3, 4, Answer::Deleted), read(5, 6, 0, 0), set(7, 8, 2, 2)]);
    bad(&[first, delete(3, 4, Answer::Deleted), read(5, 6, 1, 1)]);
    bad(&[first, delete(3, 4, Answer::Absent)]);
    bad(&[first, delete(3, 4, Answer::Deleted), set(7, 8, 2, 1)]);
    good(&[first, expecting(3, 4, 1, Answer::Deleted), read(5, 6, 0, 0)]);
    good(&[first, expecting(3, 4, 2, Answer::Mismatch), read(5, 6, 1, 1)]);
    bad(&[first, expecting(3, 4, 2, Answer::Deleted)]);
    bad(&[first, expecting(3, 4, 1, Answer::Mismatch)]);
}

#[test]
fn an_unknown_write_may_have_been_carried_out_at_any_time_or_never() {
    let unknown = small(1, 30, 40, Operation::Set { value: 8 }, Answer::Unknown);
    let first = set(10, 20, 7, 1);
    good(&[first, unknown, read(50, 60, 7, 1), read(70, 80, 8, 3)]);
    good(&[first, unknown, read(50, 60, 7, 1)]);
    bad(&[first, unknown, read(50, 60, 8, 3), read(70, 80, 7, 1)]);
    bad(&[first, unknown, read(21, 29, 8, 3)]);
    bad(&[first, unknown, read(50, 60, 8, 1)]);
    // The version of the unknown write may be 4, so a compare-and-set that expects 4 may succeed. But then no later
    // read may see version 4 again.
    good(&[first, unknown, compare_and_set(50, 60, 4, 9, 5), read(61, 62, 9, 5)]);
    bad(&[first, unknown, compare_and_set(50, 60, 4, 9, 5), read(61, 62, 8, 4)]);
    // A write that certainly had no effect cannot explain the value that is read later.
    let refused = small(1, 30, 40, Operation::Set { value: 8 }, Answer::NotDone);
    bad(&[first, refused, read(50, 60, 8, 3)]);
}

#[test]
fn counters() {
    good(&[add(10, 20, Answer::Number(2)), add(15, 25, Answer::Number(4)), count(30, 40, 4)]);
    bad(&[add(10, 20, Answer::Number(2)), add(15, 25, Answer::Number(2))]);
    bad(&[add(10, 20, Answer::Number(2)), count(30, 40, 0)]);
    good(&[add(10, 20, Answer::Unknown), count(30, 40, 0), count(50, 60, 2)]);
    bad(&[add(10, 20, Answer::Unknown), count(30, 40, 2), count(50, 60, 0)]);
    bad(&[add(10, 20, Answer::Unknown), count(30, 40, 4)]);
    let twice = [add(10, 20, Answer::Unknown), add(12, 22, Answer::Unknown)];
    good(&[&twice[..], &[count(30, 40, 4)]].concat());
    bad(&[&twice[..], &[count(30, 40, 6)]].concat());
}

#[test]
fn a_client_that_is_killed_wrote_down_what_it_began() {
    let begun = Record { attempt: 3, ..add(10, 10, Answer::Unknown) };
    let done = Record { attempt: 3, ..add(10, 20, Answer::Number(2)) };
    good(&[begun, count(30, 40, 0), count(50, 60, 2)]);
    good(&[begun, done, count(30, 40, 2)]);
    bad(&[begun, done, count(30, 40, 0)]);
    bad(&[begun, done, count(30, 40, 4)]);
}

#[test]
fn objects_are_judged_one_by_one() {
    let mut both = rules(Kind::Other);
    both.objects.push(coordination_history::Object {
        id: 2,
        name: "other".into(),
        kind: Kind::Other,
        fifo: false,
    });
    let other = |record: Record| Record { object: 2, ..record };
    passes(&both, &[set(10, 20, 7, 1), other(read(21, 25, 0, 0)), other(count(30, 31, 0))]);
    breaks(
        Rule::O7,
        &both,
        &[set(10, 20, 7, 1), other(set(10, 20, 7, 2)), other(read(21, 25, 0, 0))],
    );
}

#[test]
fn answers_that_are_none() {
    let odd = small(1, 10, 20, Operation::Read, Answer::Number(3));
    assert_eq!(check(&[odd], &rules(Kind::Other)).misfits, 1);
}

#[test]
fn a_search_that_takes_too_long_is_given_up() {
    // Thirty operations without results run at once, and each adds a different power of two. So each subset of them has
    // a different sum, and the search visits too many states.
    let add = |place: u64| {
        let what = Operation::Add { by: 1 << place };
        small(1, 10 + place, 90, what, Answer::Unknown)
    };
    let records: Vec<_> = (0..30).map(add).chain([count(91, 95, -1)]).collect();
    let report = check(&records, &rules(Kind::Other));
    assert!(report.undecided == 1 && report.broken.is_empty(), "{report}");
    assert!(!report.is_clean());
}

/// Whether any order of the operations explains their results. It tries all orders, so it is slow but simple.
fn explained(left: &[Record], state: i64) -> bool {
    let returned = |record: &Record| match record.event {
        Event::Operation { answer: Answer::Unknown, .. } => NEVER,
        _ => record.at,
    };
    let first = left.iter().map(returned).min().unwrap_or(NEVER);
    first == NEVER
        || (0..left.len()).any(|place| {
            let Event::Operation { call, what, answer } = left[place].event else { return false };
            let after = match what {
                Operation::Add { by } => state + by,
                _ => state,
            };
            let fits = answer == Answer::Unknown || answer == Answer::Number(after);
            let mut rest = left.to_vec();
            rest.remove(place);
            call <= first && fits && explained(&rest, after)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn as_trying_all_orders_says(
        asked in proptest::collection::vec((0..12_u64, 0..6_u64, 0..3_i64, 0..5_i64), 1..7)
    ) {
        let records: Vec<_> = asked.into_iter().map(|(call, lasts, by, answer)| {
            let what = if by == 0 { Operation::Count } else { Operation::Add { by } };
            let answer = if answer == 4 && by != 0 { Answer::Unknown } else { Answer::Number(answer) };
            small(1, call, call + lasts, what, answer)
        }).collect();
        let report = check(&records, &rules(Kind::Other));
        prop_assert_eq!(report.undecided, 0);
        prop_assert_eq!(report.broken.is_empty(), explained(&records, 0), "{}", report);
    }
}
