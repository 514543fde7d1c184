//! Tests of the checker's rule O8: items of work queues.

use coordination_history::{Event, Kind, Record, Rule, Rules, Work};

use crate::story::{breaks, passes, rules, told};

const ITEM: u64 = 7;

fn queue() -> Rules {
    rules(Kind::Other)
}

/// A record of this client's only claim, which has this token.
fn work(client: u32, call: u64, at: u64, token: u64, what: Work) -> Record {
    let event = Event::Work { call, item: ITEM, token, what };
    Record { at, client, attempt: 1, object: 1, event }
}

/// The item is posted at 1 to 2, and claimed by the first client at 10 to 12 with token 5.
fn posted_and_claimed() -> Vec<Record> {
    vec![
        Record { attempt: 2, ..work(9, 1, 1, 0, Work::Posting) },
        Record { attempt: 2, ..work(9, 1, 2, 0, Work::Posted) },
        work(1, 10, 12, 5, Work::Claimed),
    ]
}

fn and(records: &[Record]) -> Vec<Record> {
    [&posted_and_claimed(), records].concat()
}

fn emptied(at: u64) -> Record {
    told(at, Event::Work { call: at - 1, item: 0, token: 0, what: Work::Emptied })
}

#[test]
fn two_claims_have_an_item() {
    let two = |until: u64| {
        and(&[work(1, until, until + 1, 5, Work::Had), work(2, 20, 30, 6, Work::Claimed)])
    };
    // Without a later sign of it, nothing is known of the second claim.
    passes(&queue(), &two(40));
    let seen = |until| [two(until), vec![work(2, 50, 51, 6, Work::Had)]].concat();
    breaks(Rule::O8, &queue(), &seen(31));
    passes(&queue(), &seen(30));
    let given_back = |call: u64| {
        let back = work(1, call, call + 30, 5, Work::GivenBack);
        and(&[back, work(2, 20, 30, 6, Work::Claimed), work(2, 50, 51, 6, Work::Had)])
    };
    breaks(Rule::O8, &queue(), &given_back(31));
    passes(&queue(), &given_back(25));
}

#[test]
fn a_fault_excuses_two_claims() {
    let untimed = Rules { faults: vec!["it".into()], untimed: vec![0], ..queue() };
    let records = |from, to| {
        and(&[
            told(from, Event::Fault { kind: 0 }),
            told(to, Event::FaultEnd { kind: 0 }),
            work(1, 40, 41, 5, Work::Had),
            work(2, 20, 30, 6, Work::Claimed),
            work(2, 50, 51, 6, Work::Had),
        ])
    };
    breaks(Rule::O8, &untimed, &records(60, 70));
    passes(&untimed, &records(22, 35));
}

#[test]
fn an_item_is_acknowledged_once() {
    let acks =
        |second| and(&[work(1, 20, 21, 5, Work::Acked), work(2, 15, 25, 6, Work::Claimed), second]);
    breaks(Rule::O8, &queue(), &acks(work(2, 26, 27, 6, Work::Acked)));
    passes(&queue(), &acks(work(2, 26, 27, 6, Work::Gone)));
    passes(&queue(), &acks(work(1, 26, 27, 5, Work::Gone)));
}

#[test]
fn an_item_that_is_gone_was_acknowledged() {
    let gone = work(2, 21, 25, 6, Work::Gone);
    breaks(Rule::O8, &queue(), &and(&[gone]));
    // A try without a result may have removed the item, also one of the same claim; a try that failed has not.
    let trying = work(1, 20, 20, 5, Work::Acking);
    passes(&queue(), &and(&[trying, gone]));
    breaks(Rule::O8, &queue(), &and(&[trying, work(1, 20, 22, 5, Work::NotAcked), gone]));
    passes(&queue(), &and(&[trying, work(1, 21, 25, 5, Work::Gone)]));
    breaks(Rule::O8, &queue(), &and(&[trying, work(1, 20, 25, 5, Work::Gone)]));
}

#[test]
fn a_late_try_does_not_remove_what_another_claim_has() {
    let records = |claimed| {
        let trying = work(1, 20, 20, 5, Work::Acking);
        and(&[work(2, 15, claimed, 6, Work::Claimed), trying, work(2, 22, 25, 6, Work::Gone)])
    };
    breaks(Rule::O8, &queue(), &records(19));
    passes(&queue(), &records(21));
}

#[test]
fn what_is_gone_does_not_come_back() {
    let records = |called| {
        let (trying, gone) = (work(1, 20, 20, 5, Work::Acking), work(1, 21, 25, 5, Work::Gone));
        and(&[trying, gone, work(2, called, 32, 6, Work::Claimed)])
    };
    breaks(Rule::O8, &queue(), &records(30));
    passes(&queue(), &records(24));
}

#[test]
fn a_claim_that_is_over_does_not_acknowledge() {
    let ack =
        |call: u64| and(&[work(2, 15, 19, 6, Work::Claimed), work(1, call, 30, 5, Work::Acked)]);
    breaks(Rule::O8, &queue(), &ack(20));
    passes(&queue(), &ack(18));
}

#[test]
fn an_acknowledged_item_is_not_handed_out() {
    let claim =
        |call: u64| and(&[work(1, 13, 15, 5, Work::Acked), work(2, call, 30, 6, Work::Claimed)]);
    breaks(Rule::O8, &queue(), &claim(16));
    passes(&queue(), &claim(14));
}

#[test]
fn an_item_that_nobody_posted() {
    breaks(Rule::O8, &queue(), &[work(1, 10, 12, 5, Work::Claimed)]);
    let post = Record { attempt: 2, ..work(9, 1, 1, 0, Work::Posting) };
    passes(&queue(), &[post, work(1, 10, 12, 5, Work::Claimed)]);
    let refused = Record { attempt: 2, ..work(9, 1, 4, 0, Work::NotPosted) };
    breaks(Rule::O8, &queue(), &[post, refused, work(1, 10, 12, 5, Work::Claimed)]);
}

#[test]
fn no_item_is_lost() {
    breaks(Rule::O8, &queue(), &and(&[emptied(50)]));
    passes(&queue(), &and(&[work(1, 20, 21, 5, Work::Acked), emptied(50)]));
    // A killed client may have acknowledged the item, and a failed acknowledgement has not.
    let trying = work(1, 20, 20, 5, Work::Acking);
    passes(&queue(), &and(&[trying, emptied(50)]));
    breaks(Rule::O8, &queue(), &and(&[trying, work(1, 20, 25, 5, Work::NotAcked), emptied(50)]));
    // The post was not confirmed when the queue was found empty.
    let post = |at| Record { attempt: 2, ..work(9, 1, at, 0, Work::Posted) };
    breaks(Rule::O8, &queue(), &[post(48), emptied(50)]);
    passes(&queue(), &[post(49), emptied(50)]);
}

#[test]
fn tokens_of_claims_rise() {
    let claim = |call: u64, token| and(&[work(2, call, 30, token, Work::Claimed)]);
    breaks(Rule::O8, &queue(), &claim(13, 4));
    passes(&queue(), &claim(11, 4));
    passes(&queue(), &claim(13, 6));
    breaks(Rule::O8, &queue(), &claim(11, 5));
}
