//! Tests of the checker's rule O7, linearizability, for reads of an election's leader.

use coordination_history::{Answer, Event, Kind, Operation, Record, Rule, Rules};

use crate::story::{CALL, breaks, granted, of, passes, rules, small, whole};

fn election() -> Rules {
    rules(Kind::Leadership)
}

fn read(call: u64, at: u64, token: u64) -> Record {
    let answer = if token == 0 { Answer::Nobody } else { Answer::Leader { token } };
    small(9, call, at, Operation::Leader, answer)
}

/// Records of an election: term 1 may exist from 20 to 44 and holds for certain from 30 to 40; term 2 may exist from 35
/// to 64 and holds for certain from 50 to 60.
fn terms(also: &[Record]) -> Vec<Record> {
    let terms = [whole(1, 20, 30, 40, granted(1)), whole(2, 35, 50, 60, granted(2))].concat();
    [terms, also.to_vec()].concat()
}

#[test]
fn a_leader_leads_when_it_is_read() {
    for (call, at) in [(5, 20), (31, 35), (44, 50)] {
        passes(&election(), &terms(&[read(call, at, 1)]));
    }
    breaks(Rule::O7, &election(), &terms(&[read(5, 19, 1)]));
    breaks(Rule::O7, &election(), &terms(&[read(45, 49, 1)]));
    breaks(Rule::O7, &election(), &terms(&[read(5, 19, 3)]));
}

#[test]
fn the_read_term_may_be_that_of_somebody_who_never_said() {
    let silent = of(3, 70, CALL);
    passes(&election(), &terms(&[silent, read(70, 90, 3)]));
    breaks(Rule::O7, &election(), &terms(&[silent, read(5, 19, 3)]));
    let killed = Record { attempt: 0, ..of(3, 75, Event::Crash) };
    passes(&election(), &terms(&[silent, killed, read(70, 90, 3)]));
}

#[test]
fn nobody_and_somebody_else() {
    passes(&election(), &terms(&[read(31, 40, 0)]));
    passes(&election(), &terms(&[read(30, 39, 0)]));
    breaks(Rule::O7, &election(), &terms(&[read(31, 39, 0)]));
    passes(&election(), &terms(&[read(34, 36, 1)]));
    breaks(Rule::O7, &election(), &terms(&[read(34, 36, 2)]));
    let mut lenient = election();
    lenient.untimed = vec![0];
    let fault = Record { attempt: 0, ..of(9, 32, Event::Fault { kind: 0 }) };
    passes(&lenient, &terms(&[fault, read(33, 36, 2)]));
}

#[test]
fn terms_do_not_go_back() {
    passes(&election(), &terms(&[read(40, 42, 1), read(42, 43, 2)]));
    passes(&election(), &terms(&[read(40, 42, 2), read(42, 43, 1)]));
    breaks(Rule::O7, &election(), &terms(&[read(40, 42, 2), read(43, 44, 1)]));
    // The read begins after the second term was granted, and returns the first term.
    let mut late = terms(&[read(51, 52, 1)]);
    late.retain(|record| record.client != 1 || record.at < 42);
    let report = coordination_history::check(&late, &election());
    assert!(report.broken.contains_key(&Rule::O7), "{report}");
}
