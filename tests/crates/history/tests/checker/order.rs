//! Tests of the checker's rule O4: first come, first served.

use coordination_history::{Rule, Rules};

use crate::story::{CALL, breaks, granted, held, lock, not_held, of, passes, share, whole};

fn overtaken(rules: &Rules, rule: Rule) {
    // Client 2 entered the queue first and has token 1. Client 3 entered later, has token 2, and is granted the lock
    // first.
    let third = whole(3, 8, 20, 30, granted(2));
    let second = |asked| vec![of(2, 5, CALL), of(2, 40, granted(1)), of(2, 42, asked)];
    breaks(rule, rules, &[third.clone(), second(held(41))].concat());
    // If `is_held` returns false after the return of client 2, no violation is proved: client 2 may have been granted
    // the lock first, and then have been paused before it recorded the grant.
    passes(rules, &[third, second(not_held(41))].concat());
    let in_turn = [whole(2, 5, 20, 30, granted(1)), whole(3, 8, 40, 50, granted(2))].concat();
    passes(rules, &in_turn);
}

#[test]
fn a_waiter_is_overtaken() {
    overtaken(&lock(), Rule::O4);
    let mut unfair = lock();
    unfair.objects[0].fifo = false;
    overtaken(&unfair, Rule::O2);
}

#[test]
fn a_share_overtakes() {
    let writer = whole(2, 5, 40, 50, granted(2));
    breaks(Rule::O4, &lock(), &[share(3, 6, 20, 30, 3), writer.clone()].concat());
    passes(&lock(), &[share(3, 6, 20, 30, 1), writer].concat());
    // Shared grants do not wait for each other, so their order may differ from the order of their tokens.
    passes(&lock(), &[share(3, 6, 20, 30, 3), share(4, 6, 25, 35, 2)].concat());
}
