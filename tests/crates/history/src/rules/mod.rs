//! The checker: one module for each rule.
//!
//! The clock of every record was read before or after its call as [`Event`](crate::Event) says, so the moment at which
//! something happened lies between two records. A rule reports only what is wrong for every possible choice of these
//! moments. Two records of equal time are unordered.

mod exclusion;
mod fence;
mod leaders;
mod leaks;
mod linear;
mod liveness;
mod models;
mod order;
mod refusals;
mod tokens;
mod values;

use std::fmt;

use crate::record::{NEVER, Record};
use crate::report::{Report, Rule, TOLD, Violation};
use crate::timeline::{Attempt, Timeline};

/// A lock, value or other thing that clients use together.
#[derive(Clone, Debug)]
pub struct Object {
    /// The number in [`Record::object`].
    pub id: u32,
    /// The name of the thing in messages.
    pub name: String,
    /// What clients may do with the object at once.
    pub kind: Kind,
    /// Whether a token is a place in the queue, so that grants come in the order of tokens.
    pub fifo: bool,
}

/// What clients may do with an object at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One exclusive holder, or any number of shared ones.
    Lock,
    /// Several holders, each with a slot of its own: a semaphore or limiter.
    Slots {
        /// How many clients may hold the object at once.
        count: u32,
    },
    /// One leader at a time: an election.
    Leadership,
    /// The object is not held: a value, a counter, the fenced resource.
    Other,
}

/// What a history is checked against. Times are in nanoseconds; with [`NEVER`] as its bound, a rule is not checked.
#[derive(Clone, Debug)]
pub struct Rules {
    /// All objects of the history.
    pub objects: Vec<Object>,
    /// Names of the faults; [`Event::Fault`](crate::Event::Fault)'s `kind` is an index into them.
    pub faults: Vec<String>,
    /// Kinds of faults after which a store may grant while a holder still believes that it holds: data loss, a session
    /// that was ended early. O1 skips grants during such a fault; O2 does not.
    pub untimed: Vec<u32>,
    /// Whether tokens rise throughout the run. False where an etcd cluster loses its data.
    pub tokens_rise: bool,
    /// O5: time within which a waiter gets a result, from [`Healed`](crate::Event::Healed) or from the waiter's call,
    /// whichever is later.
    pub wait_bound: u64,
    /// O5: how long after its timeout an acquire may return.
    pub timeout_slack: u64,
    /// O5: how long after the deadline, or after the first `is_held` that returned false, a loss may be reported.
    pub lost_slack: u64,
    /// O5: whether every guard has a listener that records its loss, so that a missing report is a violation.
    pub losses_told: bool,
    /// O7: how long an entry may stay at the store after its attempt ended without a confirmed release.
    pub entry_bound: u64,
}

impl Rules {
    /// Rules with the bounds that the clauses of `docs/guarantees.md` give. They give none for waiting and for entries
    /// that are left, so these two bounds are [`NEVER`] until the caller sets them.
    pub fn new(objects: Vec<Object>) -> Self {
        Self {
            objects,
            faults: Vec::new(),
            untimed: Vec::new(),
            tokens_rise: true,
            wait_bound: NEVER,
            timeout_slack: 100_000_000,
            lost_slack: 50_000_000,
            losses_told: false,
            entry_bound: NEVER,
        }
    }
}

/// Checks a history; the records may be in any order.
///
/// All that is reported is a violation, as long as the test read the clock where [`Event`](crate::Event) says. Some
/// violations cannot be seen from outside, so they are not reported. Takes O(n log n) time, except for the values and
/// counters of O7.
pub fn check(records: &[Record], rules: &Rules) -> Report {
    let mut report = Report::default();
    let timeline = Timeline::new(records, rules, &mut report);
    let mut found = Found { timeline: &timeline, rules, report };
    for scope in timeline.scopes(rules) {
        exclusion::judge(&scope, &mut found);
        tokens::judge(&scope, &mut found);
        fence::judge(&scope, &mut found);
        order::judge(&scope, &mut found);
        liveness::judge(&scope, &mut found);
        leaks::judge(&scope, &mut found);
        refusals::judge(&scope, &mut found);
        leaders::judge(&scope, &mut found);
        values::judge(&scope, &mut found);
    }
    found.report
}

/// What the rules check, and the report to which they add.
struct Found<'a> {
    timeline: &'a Timeline<'a>,
    rules: &'a Rules,
    report: Report,
}

impl Found<'_> {
    /// Adds a violation of `rule` at an object, with the records at the indices `proof`.
    fn add(&mut self, rule: Rule, object: &Object, what: impl fmt::Display, proof: &[usize]) {
        let count = self.report.broken.entry(rule).or_default();
        *count += 1;
        if *count > TOLD {
            return;
        }
        let mut text = format!("{}: {what}", object.name);
        for record in proof.iter().filter_map(|index| self.timeline.records.get(*index)) {
            text.push_str(&format!("\n    {record}"));
        }
        self.report.violations.push(Violation { rule, text });
    }

    /// Whether a fault of [`Rules::untimed`] was present while this grant may have existed.
    fn excused(&self, attempt: &Attempt) -> bool {
        let from = attempt.call.time().unwrap_or(0);
        self.timeline.clients.untimed(from, attempt.held_until())
    }
}

/// After this many violations, a rule stops checking the object or slot. Further violations mostly follow from the
/// first ones, and finding them takes time.
const ENOUGH: u64 = 20;
