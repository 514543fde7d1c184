//! Short functions that build the histories of the tests.

use coordination_history::{
    Answer, Event, Kind, NEVER, NO_SLOT, Object, Operation, Record, Report, Rule, Rules, Why, check,
};

/// Rules for a single object of this kind.
pub(crate) fn rules(kind: Kind) -> Rules {
    Rules::new(vec![Object { id: 1, name: "it".into(), kind, fifo: true }])
}

/// Rules for a single lock.
pub(crate) fn lock() -> Rules {
    rules(Kind::Lock)
}

/// A record of the only attempt of this client.
pub(crate) fn of(client: u32, at: u64, event: Event) -> Record {
    Record { at, client, attempt: 1, object: 1, event }
}

/// A record that belongs to no attempt: about a fault, the fenced resource, or the end of the run.
pub(crate) fn told(at: u64, event: Event) -> Record {
    Record { at, client: 99, attempt: 0, object: 1, event }
}

pub(crate) fn small(client: u32, call: u64, at: u64, what: Operation, answer: Answer) -> Record {
    let event = Event::Operation { call, what, answer };
    Record { at, client, attempt: 0, object: 1, event }
}

pub(crate) const CALL: Event = Event::Call { shared: false, timeout: NEVER };
pub(crate) const TRY: Event = Event::Call { shared: false, timeout: 0 };
pub(crate) const SHARE: Event = Event::Call { shared: true, timeout: NEVER };
pub(crate) const NOT_FREE: Event = Event::Refused { why: Why::NotFree };
pub(crate) const RELEASED: Event = Event::ReleaseReturn { outcome: 0 };

pub(crate) fn granted(token: u64) -> Event {
    Event::Granted { token, slot: NO_SLOT }
}

pub(crate) fn slot(token: u64, slot: u32) -> Event {
    Event::Granted { token, slot }
}

pub(crate) fn held(before: u64) -> Event {
    Event::Probe { before, held: true }
}

pub(crate) fn not_held(before: u64) -> Event {
    Event::Probe { before, held: false }
}

/// Records of an acquire that is called at `call`, holds for certain from `from` to `to`, and is then released.
pub(crate) fn whole(client: u32, call: u64, from: u64, to: u64, grant: Event) -> Vec<Record> {
    vec![
        of(client, call, CALL),
        of(client, from, grant),
        of(client, to + 1, held(to)),
        of(client, to + 2, Event::ReleaseCall),
        of(client, to + 4, RELEASED),
    ]
}

/// The same as [`whole`], in shared mode.
pub(crate) fn share(client: u32, call: u64, from: u64, to: u64, token: u64) -> Vec<Record> {
    let mut records = whole(client, call, from, to, granted(token));
    records[0].event = SHARE;
    records
}

/// Checks that the history breaks this rule and no other.
#[track_caller]
pub(crate) fn breaks(rule: Rule, rules: &Rules, records: &[Record]) -> Report {
    let report = check(records, rules);
    assert!(report.broken.keys().eq([&rule]), "{rule:?} is to be found\n{report}");
    assert_eq!(report.misfits, 0, "{report}");
    report
}

/// Checks that the history breaks no rule.
#[track_caller]
pub(crate) fn passes(rules: &Rules, records: &[Record]) -> Report {
    let report = check(records, rules);
    assert!(report.is_clean(), "{report}");
    report
}
