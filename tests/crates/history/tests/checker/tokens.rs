//! Tests of the checker's rule O2: the later grant has the larger fencing token.

use coordination_history::{Kind, Rule};

use crate::story::{CALL, breaks, granted, lock, of, passes, rules, share, slot, whole};

#[test]
fn a_later_grant_has_the_larger_token() {
    let two = |first, second, call| {
        [whole(1, 5, 10, 20, granted(first)), whole(2, call, 30, 40, granted(second))].concat()
    };
    breaks(Rule::O2, &lock(), &two(2, 1, 11));
    passes(&lock(), &two(1, 2, 11));
    let mut data_lost = lock();
    data_lost.tokens_rise = false;
    passes(&data_lost, &two(2, 1, 11));
}

#[test]
fn acquires_at_once_are_in_no_order() {
    let second = |call| vec![of(2, call, CALL), of(2, 30, granted(1))];
    let first = whole(1, 5, 10, 20, granted(2));
    passes(&lock(), &[first.clone(), second(10)].concat());
    breaks(Rule::O2, &lock(), &[first, second(11)].concat());
}

#[test]
fn an_old_token_far_behind() {
    let mut records = Vec::new();
    for turn in 1..20 {
        records.extend(whole(
            turn,
            u64::from(turn) * 100,
            u64::from(turn) * 100 + 10,
            u64::from(turn) * 100 + 20,
            granted(u64::from(turn) + 100),
        ));
    }
    passes(&lock(), &records);
    records.extend(whole(20, 5000, 5010, 5020, granted(105)));
    breaks(Rule::O2, &lock(), &records);
}

#[test]
fn one_token_twice() {
    let two =
        |token| [whole(1, 5, 10, 20, granted(7)), whole(2, 6, 30, 40, granted(token))].concat();
    breaks(Rule::O2, &lock(), &two(7));
    passes(&lock(), &two(8));
}

#[test]
fn shares_and_the_lock() {
    // Here a shared grant is between two exclusive ones.
    let records = |token| {
        let share = share(2, 30, 40, 50, token);
        [whole(1, 5, 10, 20, granted(10)), share, whole(3, 60, 70, 80, granted(20))].concat()
    };
    passes(&lock(), &records(15));
    breaks(Rule::O2, &lock(), &records(9));
    breaks(Rule::O2, &lock(), &records(21));
}

#[test]
fn slot_by_slot() {
    let semaphore = rules(Kind::Slots { count: 2 });
    let two =
        |second| [whole(1, 5, 10, 20, slot(9, 0)), whole(2, 25, 30, 40, slot(3, second))].concat();
    breaks(Rule::O2, &semaphore, &two(0));
    passes(&semaphore, &two(1));
}
