//! The checker: one module per rule.
//!
//! All rests on one thing: the clock of every record was read on the safe side of the call that it tells of, so that
//! the true moment lies between two records. A rule judges only what no choice of true moments can make right. Two
//! records of one time are in no order.

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

/// Something that clients contend for.
#[derive(Clone, Debug)]
pub struct Object {
    /// As in [`Record::object`].
    pub id: u32,
    /// For people.
    pub name: String,
    /// What may happen at once.
    pub kind: Kind,
    /// Grants come in the order of the tokens, which are places in a queue.
    pub fifo: bool,
}

/// What an object allows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One exclusive holder, or any number of shared ones.
    Lock,
    /// So many holders, each with a slot of its own: a semaphore, a limiter.
    Slots {
        /// How many.
        count: u32,
    },
    /// One leader.
    Leadership,
    /// Nothing is held: a value, a counter, the fenced resource.
    Other,
}

/// What a history is judged by. Times are in nanoseconds; [`NEVER`] as a bound: it is not judged.
#[derive(Clone, Debug)]
pub struct Rules {
    /// All objects of the history.
    pub objects: Vec<Object>,
    /// Names of the faults, by [`Event::Fault`](crate::Event::Fault)'s `kind`.
    pub faults: Vec<String>,
    /// Kinds of faults after which a store may grant while a holder still believes: data lost, a session ended
    /// early. O1 does not judge a grant that lived in one, and O2 still does.
    pub untimed: Vec<u32>,
    /// Whether tokens rise through all that happens in the run. Not where an etcd cluster lost its data.
    pub tokens_rise: bool,
    /// O5: from [`Healed`](crate::Event::Healed), or from its call if that is later, until a waiter is answered.
    pub wait_bound: u64,
    /// O5: how much later than its timeout an acquire may return.
    pub timeout_slack: u64,
    /// O5: how much later than the deadline, or than the first `is_held` that said false, a loss is told.
    pub lost_slack: u64,
    /// O5: every guard has a listener that records its loss, so that a loss never told is one as well.
    pub losses_told: bool,
    /// O7: how long an entry may be at the store after its attempt ended without a confirmed release.
    pub entry_bound: u64,
}

impl Rules {
    /// The bounds of the clauses, and none for waiting and for left entries, which depend on the run.
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

/// Judges a history; the records may be in any order.
///
/// What it calls a violation is one, as long as the recorder read the clock where [`Event`](crate::Event) says.
/// What it does not, may be one that cannot be told from outside. O(n log n), O7's values and counters apart.
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

/// Where the rules say what they find.
struct Found<'a> {
    timeline: &'a Timeline<'a>,
    rules: &'a Rules,
    report: Report,
}

impl Found<'_> {
    /// A violation of `rule` on an object, proved by the records at these places.
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

    /// Whether a fault broke timed exclusion while this grant may have lived.
    fn excused(&self, attempt: &Attempt) -> bool {
        let from = attempt.call.time().unwrap_or(0);
        self.timeline.clients.untimed(from, attempt.held_until())
    }
}

/// A rule judges no more of an object, or of a slot, that has so many violations: they follow from each other, and
/// the search for more costs time.
const ENOUGH: u64 = 20;
