//! Tests of the checker's rule O7, linearizability, for tries that were refused.

use coordination_history::{Event, Kind, Record, Rule, Rules, Why};

use crate::story::{CALL, NOT_FREE, TRY, breaks, granted, lock, of, passes, rules, share, whole};

/// Records of client 9: a try that is called at `call` and refused at `at`.
fn refused(call: u64, at: u64) -> Vec<Record> {
    vec![of(9, call, TRY), of(9, at, NOT_FREE)]
}

fn bounded(mut rules: Rules) -> Rules {
    rules.entry_bound = 10;
    rules
}

#[test]
fn somebody_may_have_it() {
    // A try may be refused while the holder may have an entry: from the holder's call to the return of its release.
    let holder = whole(1, 20, 30, 40, granted(1));
    for (call, at) in [(5, 20), (25, 26), (30, 39), (44, 50)] {
        passes(&lock(), &[holder.clone(), refused(call, at)].concat());
    }
    for (call, at) in [(5, 19), (45, 50)] {
        breaks(Rule::O7, &lock(), &[holder.clone(), refused(call, at)].concat());
    }
    breaks(Rule::O7, &lock(), &refused(5, 19));
}

#[test]
fn entries_outlive_their_attempts() {
    let unknown = Event::ReleaseReturn { outcome: 2 };
    let ends = [Event::Cancelled, NOT_FREE, unknown, Event::Lost { deadline: 3 }];
    for end in ends {
        let mut other = vec![of(1, 20, if end == NOT_FREE { TRY } else { CALL })];
        if matches!(end, Event::Lost { .. } | Event::ReleaseReturn { .. }) {
            other.push(of(1, 25, granted(1)));
        }
        other.push(of(1, 30, end));
        // The other attempt may itself be a refused try. It may have been refused because of this try, which may have
        // had an entry at that time.
        passes(&bounded(lock()), &[other.clone(), refused(20, 40)].concat());
        passes(&bounded(lock()), &[other.clone(), refused(40, 50), refused_earlier()].concat());
        breaks(
            Rule::O7,
            &bounded(lock()),
            &[other.clone(), refused(41, 50), refused_earlier()].concat(),
        );
        passes(&lock(), &[other, refused(900, 950), refused_earlier()].concat());
    }
    // First a holder that never ends, then one whose client is killed.
    let held = vec![of(1, 20, CALL), of(1, 25, granted(1))];
    passes(&bounded(lock()), &[held.clone(), refused(900, 950)].concat());
    let crash = Record { attempt: 0, object: 0, ..of(1, 30, Event::Crash) };
    passes(&bounded(lock()), &[held.clone(), vec![crash], refused(40, 50)].concat());
    breaks(Rule::O7, &bounded(lock()), &[held, vec![crash], refused(41, 50)].concat());
}

/// Records of a holder whose entry explains a refusal between 20 and 30, but none after that.
fn refused_earlier() -> Vec<Record> {
    [of(8, 21, CALL), of(8, 22, granted(9)), of(8, 23, Event::ReleaseCall)]
        .into_iter()
        .chain([of(8, 24, Event::ReleaseReturn { outcome: 0 })])
        .collect()
}

#[test]
fn a_share_is_refused_for_the_lock_only() {
    let tried = [of(9, 35, Event::Call { shared: true, timeout: 0 }), of(9, 36, NOT_FREE)];
    let alone = whole(1, 20, 30, 40, granted(1));
    let shared = share(1, 20, 30, 40, 1);
    passes(&lock(), &[alone, tried.to_vec()].concat());
    breaks(Rule::O7, &lock(), &[shared.clone(), tried.to_vec()].concat());
    passes(&lock(), &[shared, refused(35, 36)].concat());
}

#[test]
fn one_in_the_way_is_enough_for_a_semaphore() {
    // One other attempt is enough: it may be waiting for several permits, or its entry may still be undecided.
    let semaphore = rules(Kind::Slots { count: 2 });
    let one = whole(1, 20, 30, 40, granted(1));
    passes(&semaphore, &[one.clone(), refused(35, 36)].concat());
    breaks(Rule::O7, &semaphore, &[one.clone(), refused(18, 19)].concat());
    breaks(Rule::O7, &semaphore, &[one, refused(45, 46)].concat());
}

#[test]
fn only_not_free_is_judged_and_only_of_tries() {
    passes(&lock(), &[of(9, 5, TRY), of(9, 6, Event::Refused { why: Why::Unavailable })]);
    let timeout = Event::Call { shared: false, timeout: 50 };
    passes(&lock(), &[of(9, 5, timeout), of(9, 55, NOT_FREE)]);
}
