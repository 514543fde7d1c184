//! Tests of the checker's rule O1, mutual exclusion.

use coordination_history::{Event, Kind, Record, Rule};

use crate::story::{
    CALL, RELEASED, SHARE, breaks, granted, held, lock, not_held, of, passes, rules, share, slot,
    told, whole,
};

/// Records of two clients that hold one lock: the first from 10 to `until`, the second from 30 to 50.
fn two(until: u64) -> Vec<Record> {
    [whole(1, 5, 10, until, granted(1)), whole(2, 6, 30, 50, granted(2))].concat()
}

#[test]
fn two_hold_at_once() {
    breaks(Rule::O1, &lock(), &two(31));
    passes(&lock(), &two(30));
    breaks(Rule::O1, &rules(Kind::Leadership), &two(31));
}

#[test]
fn the_order_of_the_records_says_nothing() {
    let mut records = two(31);
    records.reverse();
    breaks(Rule::O1, &lock(), &records);
}

#[test]
fn a_hold_inside_a_hold() {
    let outer = whole(1, 5, 10, 90, granted(1));
    breaks(Rule::O1, &lock(), &[outer, whole(2, 6, 30, 50, granted(2))].concat());
}

#[test]
fn still_held_when_the_next_had_returned() {
    // `is_held` is never called on the second grant. In both cases the second grant is the later one: in the first case
    // only by its larger token, in the second case also because it was called after the first grant had returned.
    let next = |call, token| vec![of(2, call, CALL), of(2, 30, granted(token))];
    for (call, token) in [(6, 2), (20, 2)] {
        let records = |until| [whole(1, 5, 10, until, granted(1)), next(call, token)].concat();
        breaks(Rule::O1, &lock(), &records(31));
        passes(&lock(), &records(30));
    }
    let mut no_tokens = lock();
    no_tokens.tokens_rise = false;
    let records = |call| [whole(1, 5, 10, 31, granted(9)), next(call, 2)].concat();
    breaks(Rule::O1, &no_tokens, &records(20));
    passes(&no_tokens, &records(6));
}

#[test]
fn a_paused_client_may_learn_of_its_grant_late() {
    // This is allowed: the store granted the lock to the first client, which was then paused before it could record the
    // grant. Its grant expired before the second client was granted the lock.
    let late = [of(1, 5, CALL), of(1, 40, granted(1)), of(1, 42, not_held(41))];
    passes(&lock(), &[late.to_vec(), whole(2, 6, 30, 60, granted(2))].concat());
    let wrong = [of(1, 5, CALL), of(1, 40, granted(1)), of(1, 42, held(41))];
    breaks(Rule::O1, &lock(), &[wrong.to_vec(), whole(2, 6, 30, 60, granted(2))].concat());
}

#[test]
fn a_killed_holder() {
    let killed = |until| {
        let crash = Record { attempt: 0, object: 0, ..of(1, 60, Event::Crash) };
        vec![of(1, 5, CALL), of(1, 10, granted(1)), of(1, until + 1, held(until)), crash]
    };
    let next = whole(2, 6, 30, 50, granted(2));
    passes(&lock(), &[killed(29), next.clone()].concat());
    breaks(Rule::O1, &lock(), &[killed(35), next].concat());
}

#[test]
fn shares() {
    let shares = [share(1, 5, 10, 40, 1), share(2, 6, 11, 40, 2), share(3, 7, 12, 60, 3)].concat();
    passes(&lock(), &shares);
    passes(&lock(), &[shares.clone(), whole(4, 8, 60, 80, granted(4))].concat());
    breaks(Rule::O1, &lock(), &[shares.clone(), whole(4, 8, 59, 80, granted(4))].concat());
    // Here a shared grant overlaps an exclusive one.
    let alone = whole(4, 8, 60, 80, granted(4));
    breaks(Rule::O1, &lock(), &[shares.clone(), alone.clone(), share(5, 9, 79, 90, 5)].concat());
    passes(&lock(), &[shares, alone, share(5, 9, 80, 90, 5)].concat());
    // Elections and slots have no shared mode, so two shared grants of them count as exclusive and break the rule.
    let two = [share(1, 5, 10, 40, 1), share(2, 6, 11, 40, 2)].concat();
    breaks(Rule::O1, &rules(Kind::Leadership), &two);
}

#[test]
fn a_downgrade_lets_others_share() {
    let first = |downgraded| {
        let records = [
            of(1, 5, CALL),
            of(1, 10, granted(1)),
            of(1, 25, held(24)),
            of(1, downgraded, Event::Downgraded),
            of(1, 41, held(40)),
        ];
        records.to_vec()
    };
    let share = [of(2, 6, SHARE), of(2, 30, granted(2)), of(2, 51, held(50))].to_vec();
    passes(&lock(), &[first(26), share.clone()].concat());
    breaks(Rule::O1, &lock(), &[first(40), share].concat());
}

#[test]
fn one_slot_twice() {
    let semaphore = rules(Kind::Slots { count: 3 });
    let two =
        |other| [whole(1, 5, 10, 50, slot(1, 0)), whole(2, 6, 20, 40, slot(2, other))].concat();
    breaks(Rule::O1, &semaphore, &two(0));
    passes(&semaphore, &two(1));
    // Tokens of different slots have no order, so the smaller token of the later grant is no violation.
    let records = [whole(1, 5, 10, 50, slot(9, 0)), whole(2, 60, 61, 70, slot(2, 1))].concat();
    passes(&semaphore, &records);
}

#[test]
fn more_than_there_are_permits() {
    let semaphore = rules(Kind::Slots { count: 2 });
    let three = |from| {
        [
            whole(1, 5, 10, 50, granted(1)),
            whole(2, 6, 20, 40, granted(2)),
            whole(3, 7, from, 60, granted(3)),
        ]
        .concat()
    };
    breaks(Rule::O1, &semaphore, &three(39));
    passes(&semaphore, &three(40));
    // `is_held` is never called on the third grant. So it is known to hold at the same time as the others only if it
    // was called after they had returned.
    let third = |call| {
        let mut records = three(39);
        records.truncate(10);
        records.extend([of(3, call, CALL), of(3, 39, granted(3))]);
        records
    };
    breaks(Rule::O1, &semaphore, &third(21));
    passes(&semaphore, &third(20));
}

#[test]
fn a_loss_is_final() {
    let ends = |end: Event, before| {
        vec![of(1, 5, CALL), of(1, 10, granted(1)), of(1, 20, end), of(1, 30, held(before))]
    };
    for end in [not_held(19), Event::Lost { deadline: 20 }, RELEASED] {
        breaks(Rule::O1, &lock(), &ends(end, 21));
        passes(&lock(), &ends(end, 20));
    }
}

#[test]
fn faults_that_break_timed_exclusion() {
    let mut lenient = lock();
    lenient.faults = vec!["slow network".into(), "lease revoked".into()];
    lenient.untimed = vec![1];
    let with = |kind, from, to| {
        let fault = [told(from, Event::Fault { kind }), told(to, Event::FaultEnd { kind })];
        [two(40), fault.to_vec()].concat()
    };
    breaks(Rule::O1, &lenient, &with(0, 12, 20));
    breaks(Rule::O1, &lenient, &with(1, 1, 4));
    breaks(Rule::O1, &lenient, &with(1, 60, 70));
    assert!(passes(&lenient, &with(1, 12, 20)).excused > 0);
    // Here the fault never ended.
    let open = [two(40), vec![told(15, Event::Fault { kind: 1 })]].concat();
    passes(&lenient, &open);
}
