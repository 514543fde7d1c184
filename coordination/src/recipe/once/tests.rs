//! Tests of when a claim can be made, by clocks that are right or wrong.

use proptest::prelude::*;

use super::last::{Decision, Last, Now, Rule, Shown, decide};
use crate::error::ErrorKind;
use crate::recipe::engine::data::stored;
use crate::token::FencingToken;

fn rule(period: u64, is_aligned: bool) -> Rule {
    Rule { period, at_least: 0, is_aligned }
}

fn claim(last: Option<&Last>, wall: u64, rule: Rule) -> Option<Last> {
    at(last, Now { wall, store: None, unsure: 0, host: None }, rule)
}

fn at(last: Option<&Last>, now: Now, rule: Rule) -> Option<Last> {
    match decide(last, now, rule) {
        Decision::Claim(new) => Some(new),
        Decision::Wait | Decision::Doubt(_) => None,
    }
}

fn claims(clock: &[u64], period: u64, is_aligned: bool) -> Vec<(u64, u64)> {
    let mut last = None;
    let mut claimed = Vec::new();
    for wall in clock {
        if let Some(new) = claim(last.as_ref(), *wall, rule(period, is_aligned)) {
            claimed.push((new.number.value(), new.at));
            last = Some(new);
        }
    }
    claimed
}

#[test]
fn one_in_each_period() {
    assert_eq!(claims(&[3, 4, 12, 13, 22, 23], 10, false), [(1, 3), (2, 13), (3, 23)]);
    assert_eq!(
        claims(&[3, 9, 10, 11, 19, 35, 39, 40], 10, true),
        [(1, 3), (2, 10), (3, 35), (4, 40)]
    );
}

#[test]
fn a_clock_set_back_claims_nothing() {
    assert_eq!(claims(&[100, 5, 50, 109, 110], 10, false), [(1, 100), (2, 110)]);
    assert_eq!(claims(&[105, 5, 55, 109, 110], 10, true), [(1, 105), (2, 110)]);
}

#[test]
fn given_back_it_is_free_and_later_claims_are_not_earlier() {
    let first = claim(None, 100, rule(10, false)).expect("free");
    let free = Last { next: first.at, ..first };
    let second = claim(Some(&free), 90, rule(10, false)).expect("given back");
    assert_eq!((second.number.value(), second.at, second.next), (2, 100, 110));
}

const HOUR: u64 = 3_600_000_000;
const YEARS: u64 = 10 * 365 * 24 * HOUR;

/// A claim is dated ten years ahead, and more hosts than are remembered ask once a minute.
#[test]
fn many_hosts_that_doubt_do_not_make_each_other_forget() {
    const MINUTE: u64 = HOUR / 60;
    let mut last = claim(None, YEARS, rule(HOUR, false)).expect("free");
    for minute in 0..130 {
        for epoch in 1..=100 {
            let wall = minute * MINUTE;
            let now = Now { wall, store: None, unsure: 0, host: shown(epoch, wall) };
            match decide(Some(&last), now, rule(HOUR, false)) {
                Decision::Claim(_) => {
                    assert!(minute >= 60, "after {minute} minutes");
                    return;
                }
                Decision::Doubt(Some(doubted)) => last = doubted,
                Decision::Doubt(None) | Decision::Wait => {}
            }
        }
    }
    panic!("nobody gets the next claim");
}

/// The first hosts that found the claim are gone, as all hosts have been started anew. Two ask once a minute.
#[test]
fn hosts_that_are_gone_make_room_in_the_end() {
    const MINUTE: u64 = HOUR / 60;
    let mut last = claim(None, YEARS, rule(HOUR, false)).expect("free");
    for minute in 0..50_000 {
        let hosts = if minute == 0 { 1..=64 } else { 101..=102 };
        for epoch in hosts {
            let wall = minute * MINUTE;
            let now = Now { wall, store: None, unsure: 0, host: shown(epoch, wall) };
            match decide(Some(&last), now, rule(HOUR, false)) {
                Decision::Claim(_) => return,
                Decision::Doubt(Some(doubted)) => last = doubted,
                Decision::Doubt(None) | Decision::Wait => {}
            }
        }
    }
    panic!("nobody gets the next claim");
}

fn shown(epoch: u64, micros: u64) -> Option<Shown> {
    Some(Shown { epoch, micros })
}

#[test]
fn a_clock_that_is_years_ahead_is_believed_for_one_period() {
    for is_aligned in [false, true] {
        let rule = rule(HOUR, is_aligned);
        let wrong = claim(None, YEARS + HOUR / 2, rule).expect("free");
        let on = |epoch, passed: u64| Now {
            wall: HOUR + passed,
            store: None,
            unsure: 0,
            host: shown(epoch, 7 + passed),
        };
        let Decision::Doubt(Some(seen)) = decide(Some(&wrong), on(1, 0), rule) else {
            panic!("it is believed");
        };
        assert_eq!(decide(Some(&seen), on(1, HOUR), rule), Decision::Doubt(None), "half a percent");
        assert_eq!(seen.left(on(1, HOUR / 2)), HOUR / 2 + HOUR / 200);
        let next = at(Some(&seen), on(1, HOUR + HOUR / 200), rule).expect("a period has passed");
        assert_eq!((next.number.value(), next.at), (2, 2 * HOUR + HOUR / 200));
        // Each host waits by its own clock, which starts again with each boot.
        let Decision::Doubt(Some(seen)) = decide(Some(&seen), on(2, 2 * HOUR), rule) else {
            panic!("it has seen nothing");
        };
        assert!(at(Some(&seen), on(2, 3 * HOUR), rule).is_none());
        assert!(at(Some(&seen), on(2, 4 * HOUR), rule).is_some());
        let mut seen = seen;
        for epoch in 3..200 {
            let Decision::Doubt(Some(more)) = decide(Some(&seen), on(epoch, 0), rule) else {
                panic!("it has seen nothing");
            };
            seen = more;
        }
        assert!(serde_json::to_string(&seen).expect("it is text").len() < 2_000);
    }
}

#[test]
fn where_the_store_has_a_clock_it_counts() {
    for is_aligned in [false, true] {
        let rule = rule(HOUR, is_aligned);
        let on = |wall: u64, passed: u64| Now {
            wall,
            store: shown(5, 9 + passed),
            unsure: 0,
            host: None,
        };
        let wrong = at(None, on(YEARS + HOUR / 2, 0), rule).expect("free");
        assert_eq!(decide(Some(&wrong), on(2 * HOUR, HOUR - 1), rule), Decision::Doubt(None));
        assert_eq!(wrong.left(on(2 * HOUR, HOUR / 3)), HOUR - HOUR / 3);
        let right = at(Some(&wrong), on(2 * HOUR, HOUR), rule).expect("a period has passed");
        assert_eq!((right.at, right.next), (2 * HOUR, 3 * HOUR));
        // The host with the wrong clock does not get the next claim too early either.
        assert!(at(Some(&right), on(YEARS + 2 * HOUR, HOUR + HOUR / 2), rule).is_none());
        assert!(at(Some(&right), on(YEARS + 3 * HOUR, 2 * HOUR), rule).is_some());
        // If the wall clocks fit together, they decide.
        assert!(at(Some(&right), on(3 * HOUR - 1, 2 * HOUR), rule).is_none());
        assert!(at(Some(&right), on(3 * HOUR, 2 * HOUR - 1), rule).is_some());
        // A clock of the store that was restarted says nothing.
        let anew = Now { wall: 3 * HOUR, store: shown(6, 1), unsure: 0, host: None };
        assert!(at(Some(&right), anew, rule).is_some());
    }
}

#[test]
fn who_is_stopped_when_the_store_tells_its_time_claims_a_whole_period() {
    let rule = rule(HOUR, false);
    let stopped = 2 * HOUR / 3;
    let now =
        |passed: u64| Now { wall: YEARS + passed, store: shown(5, passed), unsure: 0, host: None };
    let claimed = at(None, Now { wall: YEARS + stopped, unsure: stopped, ..now(0) }, rule);
    let claimed = claimed.expect("free");
    assert_eq!(decide(Some(&claimed), now(stopped + HOUR - 1), rule), Decision::Wait);
    assert!(at(Some(&claimed), now(stopped + HOUR), rule).is_some());
    // A process that was stopped while it read the store's clock does not doubt the claim either.
    let asks = Now { wall: YEARS + stopped + HOUR - 1, unsure: stopped, ..now(HOUR - 1) };
    assert_eq!(decide(Some(&claimed), asks, rule), Decision::Wait);
}

#[test]
fn what_a_wrong_clock_gave_back_is_not_dated_on() {
    let rule = rule(HOUR, false);
    let given_back = claim(None, YEARS, rule).expect("free").settled(0);
    let next = claim(Some(&given_back), 5, rule).expect("given back");
    assert_eq!((next.number.value(), next.at, next.next), (2, 5, HOUR + 5));
    let forgotten = claim(None, YEARS, rule).expect("free").forgotten();
    let next = claim(Some(&forgotten), 5, rule).expect("forgotten");
    assert_eq!((next.number.value(), next.at), (2, 5));
    // This is a claim as an earlier version stored it, which knew nothing of wrong clocks.
    let old = Last::of(&stored::value(r#"{"number":3,"at":5,"next":3600000005}"#), "claim");
    let old = old.expect("it reads").expect("it is there");
    assert!(claim(Some(&old), HOUR, rule).is_none() && claim(Some(&old), HOUR + 5, rule).is_some());
}

#[test]
fn claims_are_no_closer_than_is_asked_for() {
    let rule = Rule { at_least: 25, ..rule(10, true) };
    let first = claim(None, 19, rule).expect("free");
    assert_eq!(first.next, 44, "not 20");
    assert_eq!(claim(Some(&first), 43, rule), None);
    assert_eq!(claim(Some(&first), 44, rule).map(|second| second.next), Some(69));
}

#[test]
fn a_claim_that_nobody_can_have_made_is_damage() {
    let kind = |data: &str| {
        let last = Last::of(&stored::value(data), "claim");
        last.err().map(|error| error.kind())
    };
    assert_eq!(kind(r#"{"number":3,"at":5,"next":18446744073709551615}"#), None);
    for damaged in [
        "",
        r#"{"number":0,"at":5,"next":7}"#,
        r#"{"number":18446744073709551615,"at":5,"next":7}"#,
        r#"{"number":3,"at":18446744073709551615,"next":7}"#,
    ] {
        assert_eq!(kind(damaged), Some(ErrorKind::Corrupt), "{damaged}");
    }
}

#[test]
fn extremes_do_no_harm() {
    let number = FencingToken::new(u64::MAX).expect("not zero");
    let last = claim(None, 1, rule(1, false)).expect("free");
    let last = Last { number, at: u64::MAX, next: 0, ..last };
    for is_aligned in [false, true] {
        let new = claim(Some(&last), 0, rule(u64::MAX, is_aligned)).expect("it is over");
        assert_eq!(new.next, u64::MAX);
    }
    let extreme = Last { at: u64::MAX, next: u64::MAX, ..last };
    let _ = (extreme.at(), extreme.next());
}

proptest! {
    #[test]
    fn claims_are_a_period_apart(
        clock in prop::collection::vec(0_u64..1_000, 1..100),
        period in 1_u64..100,
        is_aligned: bool,
    ) {
        let claimed = claims(&clock, period, is_aligned);
        for pair in claimed.windows(2) {
            prop_assert_eq!(pair[0].0 + 1, pair[1].0);
            match is_aligned {
                true => prop_assert!(pair[0].1 / period < pair[1].1 / period),
                false => prop_assert!(pair[0].1 + period <= pair[1].1),
            }
        }
    }
}
