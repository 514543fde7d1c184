//! The checker: one module for each rule.
//!
//! The clock of each record was read before or after a call, as [`Event`](crate::Event) says. So the exact moment at
//! which the call took effect is unknown, but it lies between two records. A rule reports a violation only if it is
//! broken for every possible choice of these moments. The order of two records with equal times is unknown.

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
mod work;

use std::fmt;

use crate::record::{NEVER, Record};
use crate::report::{Report, Rule, TOLD, Violation};
use crate::timeline::{Attempt, Timeline};

/// A lock, value or other thing that clients use together.
#[derive(Clone, Debug)]
pub struct Object {
    /// The number by which a record names this object, in [`Record::object`].
    pub id: u32,
    /// The name of the object in messages.
    pub name: String,
    /// How many clients may hold the object at once.
    pub kind: Kind,
    /// Whether an acquire gets its token when it enters the queue, so that grants come in the order of the tokens.
    pub fifo: bool,
}

/// How many clients may hold an object at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One exclusive holder, or any number of shared ones.
    Lock,
    /// Several holders, each with a slot of its own: a semaphore or limiter.
    Slots {
        /// How many clients may hold the object at once.
        count: u32,
    },
    /// One leader at a time: an election. Unlike a lock, it has no shared mode.
    Leadership,
    /// The object is not held: a value, a counter, a work queue, the fenced resource.
    Other,
}

/// The objects and limits against which a history is checked. Times are in nanoseconds. [`NEVER`] as a limit means that
/// the rule is not checked.
#[derive(Clone, Debug)]
pub struct Rules {
    /// All objects of the history.
    pub objects: Vec<Object>,
    /// The names of the faults. The `kind` of [`Event::Fault`](crate::Event::Fault) is an index in this list.
    pub faults: Vec<String>,
    /// The kinds of faults during which a store may grant a lock while the former holder still believes that it holds
    /// the lock, because the store loses data or ends a session early. O1 does not check grants during such a fault; O2
    /// does.
    pub untimed: Vec<u32>,
    /// Whether tokens rise throughout the run. False for a run in which an etcd cluster loses its data, because the
    /// tokens of the cluster begin again when its data are lost.
    pub tokens_rise: bool,
    /// O5: within this time a waiter has to get a result. The time is counted from [`Healed`](crate::Event::Healed) or
    /// from the waiter's call, whichever is later.
    pub wait_bound: u64,
    /// O5: an acquire may return at most this long after its timeout.
    pub timeout_slack: u64,
    /// O5: a loss may be reported at most this long after the deadline, or after the first call of `is_held` that
    /// returned false.
    pub lost_slack: u64,
    /// O5: whether the test listens on every guard and records its loss. Only then is a missing record of a loss a
    /// violation.
    pub losses_told: bool,
    /// O7: an entry may stay at the store at most this long after its attempt ended without a confirmed release.
    pub entry_bound: u64,
}

impl Rules {
    /// Rules with the bounds that the clauses of `docs/guarantees.md` give. The clauses give no bound for how long
    /// waiters wait, and none for how long entries stay at the store. So `wait_bound` and `entry_bound` are [`NEVER`]
    /// until the caller sets them.
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
/// Every reported violation is a real one, as long as the test read the clock where [`Event`](crate::Event) says. Some
/// violations cannot be seen from outside, so they are not reported.
///
/// Takes O(n log n) time, except for the search for an order of the operations on values and counters (O7).
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
        work::judge(&scope, &mut found);
    }
    found.report
}

/// What all rules use: the history, the limits, and the report to which a rule adds the violations that it finds.
struct Found<'a> {
    timeline: &'a Timeline<'a>,
    rules: &'a Rules,
    report: Report,
}

impl Found<'_> {
    /// Adds a violation of `rule` at an object. Its text includes the records with the indices `proof`.
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

    /// Whether a fault of [`Rules::untimed`] lasted at any moment from the grant's call to the end of its certain hold.
    /// Such a grant proves nothing about O1 and O4.
    fn excused(&self, attempt: &Attempt) -> bool {
        let from = attempt.call.time().unwrap_or(0);
        self.timeline.clients.untimed(from, attempt.held_until())
    }
}

/// How many violations at one object or slot a rule finds before it stops checking there. Further violations mostly
/// follow from the first ones, and finding them takes time.
const ENOUGH: u64 = 20;
