//! Tests of the checker's rule O5: waiters are granted, timeouts and losses are reported in time.

use coordination_history::{Event, Record, Rule, Rules, Why};

use crate::story::{CALL, NOT_FREE, TRY, breaks, granted, lock, not_held, of, passes, told, whole};

fn bounds() -> Rules {
    let mut rules = lock();
    (rules.wait_bound, rules.timeout_slack, rules.lost_slack) = (100, 10, 5);
    rules
}

fn process(client: u32, at: u64, event: Event) -> Record {
    Record { attempt: 0, object: 0, ..of(client, at, event) }
}

/// A record that breaks no rule, so that the history lasts until this moment.
fn until(at: u64) -> Record {
    told(at, Event::Remains { entries: 0 })
}

#[test]
fn a_lost_waiter() {
    let waits = |healed, end| vec![of(1, 50, CALL), told(healed, Event::Healed), until(end)];
    breaks(Rule::O5, &bounds(), &waits(60, 161));
    passes(&bounds(), &waits(60, 160));
    // The waiter calls after the run has healed, so its time limit begins at its call.
    breaks(Rule::O5, &bounds(), &waits(20, 151));
    passes(&bounds(), &waits(20, 150));
    passes(&lock(), &waits(60, 1000));
}

#[test]
fn a_late_answer() {
    let answered =
        |at, answer| vec![of(1, 50, CALL), told(60, Event::Healed), of(1, at, answer), until(1000)];
    for answer in [granted(1), NOT_FREE, Event::Refused { why: Why::Unavailable }] {
        breaks(Rule::O5, &bounds(), &answered(161, answer));
        passes(&bounds(), &answered(160, answer));
    }
    passes(&bounds(), &answered(300, Event::Cancelled));
}

#[test]
fn new_faults_end_the_quiet() {
    let fault = |broken: Record| vec![of(1, 50, CALL), told(60, Event::Healed), broken, until(900)];
    let kinds = [
        told(160, Event::Fault { kind: 0 }),
        process(2, 160, Event::Paused),
        process(2, 160, Event::Crash),
    ];
    for broken in kinds {
        passes(&bounds(), &fault(broken));
    }
    breaks(Rule::O5, &bounds(), &fault(told(162, Event::Fault { kind: 0 })));
    breaks(Rule::O5, &bounds(), &fault(process(2, 162, Event::Paused)));
    // A second `Healed` begins a new quiet period, in which the waiter is late.
    let mut again = fault(told(160, Event::Fault { kind: 0 }));
    again.push(told(200, Event::Healed));
    breaks(Rule::O5, &bounds(), &again);
}

#[test]
fn the_dead_wait_for_nothing() {
    let waits = [of(1, 50, CALL), told(60, Event::Healed)].to_vec();
    let crash = |client, at| vec![process(client, at, Event::Crash), until(900)];
    passes(&bounds(), &[waits.clone(), crash(1, 500)].concat());
    // Another client dies at an unknown moment after its last record. The quiet period ends at that record.
    let word = |at| vec![Record { attempt: 7, ..of(2, at, TRY) }];
    passes(&bounds(), &[waits.clone(), word(160), crash(2, 500)].concat());
    breaks(Rule::O5, &bounds(), &[waits, word(162), crash(2, 500)].concat());
}

#[test]
fn a_waiter_that_is_stopped() {
    // The waiter's pause began before the quiet period and ended within it, so its time limit begins when it is
    // resumed.
    let waits = |answered| {
        vec![
            of(1, 50, CALL),
            process(1, 55, Event::Paused),
            told(60, Event::Healed),
            process(1, 90, Event::Resumed),
            of(1, answered, granted(1)),
            until(900),
        ]
    };
    passes(&bounds(), &waits(190));
    breaks(Rule::O5, &bounds(), &waits(191));
}

#[test]
fn an_acquire_outlives_its_timeout() {
    let call = Event::Call { shared: false, timeout: 50 };
    for answer in [NOT_FREE, granted(1), Event::Refused { why: Why::Unavailable }] {
        passes(&bounds(), &[of(1, 100, call), of(1, 160, answer)]);
        breaks(Rule::O5, &bounds(), &[of(1, 100, call), of(1, 161, answer)]);
        passes(&bounds(), &[of(1, 100, TRY), of(1, 161, answer), of(2, 80, TRY)]);
    }
    breaks(Rule::O5, &bounds(), &[of(1, 100, call), until(161)]);
    passes(&bounds(), &[of(1, 100, call), until(160)]);
    passes(&bounds(), &[of(1, 100, call), process(1, 500, Event::Crash)]);
}

#[test]
fn a_stopped_acquire_has_more_time() {
    let call = Event::Call { shared: false, timeout: 50 };
    let stopped = |answered| {
        vec![
            of(1, 100, call),
            process(1, 140, Event::Paused),
            process(1, 340, Event::Resumed),
            of(1, answered, NOT_FREE),
        ]
    };
    passes(&bounds(), &stopped(360));
    breaks(Rule::O5, &bounds(), &stopped(361));
    // If another client is paused, this one gets no more time.
    let mut other = stopped(300);
    other[1].client = 2;
    other[2].client = 2;
    breaks(Rule::O5, &bounds(), &other);
}

#[test]
fn a_loss_is_told_late() {
    let lost = |at| {
        [of(1, 5, CALL), of(1, 10, granted(1)), of(1, at, Event::Lost { deadline: 100 })].to_vec()
    };
    passes(&bounds(), &lost(105));
    breaks(Rule::O5, &bounds(), &lost(106));
    // The acquire returns only after the guard's deadline, so the time for the report begins at the return.
    passes(
        &bounds(),
        &[of(1, 5, CALL), of(1, 200, granted(1)), of(1, 205, Event::Lost { deadline: 100 })],
    );
    let stopped = |to| vec![process(1, 90, Event::Paused), process(1, to, Event::Resumed)];
    passes(&bounds(), &[lost(305), stopped(300)].concat());
    breaks(Rule::O5, &bounds(), &[lost(306), stopped(300)].concat());
    // The pause ended before the deadline, so it gives no more time.
    breaks(Rule::O5, &bounds(), &[lost(106), stopped(95)].concat());
    // After the release, the loss need not be reported any more.
    passes(&bounds(), &[lost(306), vec![of(1, 104, Event::ReleaseCall)]].concat());
}

#[test]
fn a_loss_is_told_after_is_held_knew() {
    let lost = |at| {
        let event = Event::Lost { deadline: coordination_history::NEVER };
        [of(1, 5, CALL), of(1, 10, granted(1)), of(1, 100, not_held(99)), of(1, at, event)]
    };
    passes(&bounds(), &lost(105));
    breaks(Rule::O5, &bounds(), &lost(106));
}

#[test]
fn a_loss_is_never_told() {
    let lost = [of(1, 5, CALL), of(1, 10, granted(1)), of(1, 100, not_held(99)), until(106)];
    passes(&bounds(), &lost);
    let mut listening = bounds();
    listening.losses_told = true;
    breaks(Rule::O5, &listening, &lost);
    let killed = [lost.to_vec(), vec![process(1, 200, Event::Crash)]].concat();
    passes(&listening, &killed);
    passes(&listening, &whole(1, 5, 10, 20, granted(1)));
}
