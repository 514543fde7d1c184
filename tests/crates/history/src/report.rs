//! The result of a check.

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Event, Record, Why, Work};
use crate::rules::Rules;

/// The rules that the checker knows; each is explained in its module under `rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Mutual exclusion.
    O1,
    /// The later grant has the larger fencing token.
    O2,
    /// The fenced resource applies no write of an old holder, and loses no applied write.
    O3,
    /// First come, first served.
    O4,
    /// Waiters are granted, timeouts and losses are reported in time.
    O5,
    /// No entries are left at the store.
    O6,
    /// Tries, leaders, values and counters are linearizable.
    O7,
    /// No item of a work queue is in two live claims, each is acknowledged once and by its live claim, and none is lost.
    O8,
}

impl Rule {
    /// Whether a slow machine can make this rule fail although the library is right. The other rules hold at any speed.
    pub fn is_of_time(self) -> bool {
        matches!(self, Self::O5 | Self::O6)
    }
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule that was broken.
    pub rule: Rule,
    /// What happened, with the records that prove it.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// How many violations of each rule the report describes; further ones are only counted.
pub(crate) const TOLD: u64 = 10;

/// What a history contains, and its violations.
///
/// If a history has few records, a report without violations says little. So a test should compare the numbers with
/// what its run should have produced, and require [`misfits`](Self::misfits) and [`undecided`](Self::undecided) to be
/// 0.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Descriptions of the first violations of each rule.
    pub violations: Vec<Violation>,
    /// The number of violations of each rule. It is a lower bound: after many violations at one object, the rule stops
    /// checking that object.
    pub broken: BTreeMap<Rule, u64>,
    /// Number of records.
    pub records: u64,
    /// Time from the first record to the last, in nanoseconds.
    pub span: u64,
    /// Acquires begun.
    pub attempts: u64,
    /// Acquires that returned a guard.
    pub grants: u64,
    /// Acquires that returned without a guard, by the reason.
    pub refused: BTreeMap<Why, u64>,
    /// Acquires dropped by their caller.
    pub cancelled: u64,
    /// Acquires that neither returned nor were dropped, for instance because their client was killed.
    pub unanswered: u64,
    /// Guards that reported their loss.
    pub lost: u64,
    /// Guards whose release succeeded.
    pub released: u64,
    /// Calls of `is_held` that returned true.
    pub held: u64,
    /// Calls of `is_held` that returned false.
    pub not_held: u64,
    /// Writes that the fenced resource applied.
    pub writes: u64,
    /// Writes that the fenced resource refused.
    pub stale_writes: u64,
    /// Short operations on values, counters and elections.
    pub operations: u64,
    /// Claims of a work queue that returned with items.
    pub claims: u64,
    /// How often an item was handed out to a claim.
    pub handed_out: u64,
    /// Acknowledgements that removed an item.
    pub acked: u64,
    /// Records [`Event::Remains`]: how often the entries of an object at the store were counted at the end.
    pub counted: u64,
    /// Kills of a client.
    pub crashes: u64,
    /// Pauses of a client.
    pub pauses: u64,
    /// Number of faults, by name.
    pub faults: BTreeMap<String, u64>,
    /// Grants that O1 did not check, because a fault of [`Rules::untimed`](crate::Rules::untimed) was present.
    pub excused: u64,
    /// Objects of which O7 is unknown, because the search for an order of their operations visited too many states and
    /// was given up.
    pub undecided: u64,
    /// Records that contradict other records or the rules, for instance a second result of one attempt, or an unknown
    /// object. If there are any, the test that wrote the records is wrong.
    pub misfits: u64,
}

impl Report {
    /// Whether no rule is broken and everything could be checked.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.undecided == 0 && self.misfits == 0
    }

    /// Counts a record.
    pub(crate) fn count(&mut self, record: &Record, rules: &Rules) {
        match record.event {
            Event::Call { .. } => self.attempts += 1,
            Event::Granted { .. } => self.grants += 1,
            Event::Refused { why } => *self.refused.entry(why).or_default() += 1,
            Event::Cancelled => self.cancelled += 1,
            Event::Probe { held: true, .. } => self.held += 1,
            Event::Probe { held: false, .. } => self.not_held += 1,
            Event::Lost { .. } => self.lost += 1,
            Event::ReleaseReturn { outcome: 0 } => self.released += 1,
            Event::Write { accepted: true, .. } => self.writes += 1,
            Event::Write { accepted: false, .. } => self.stale_writes += 1,
            Event::Operation { .. } => self.operations += 1,
            Event::Work { what: Work::Claimed, .. } => self.handed_out += 1,
            Event::Work { what: Work::Acked, .. } => self.acked += 1,
            Event::Remains { .. } => self.counted += 1,
            Event::Crash => self.crashes += 1,
            Event::Paused => self.pauses += 1,
            Event::Fault { kind } => {
                let name = rules.faults.get(kind as usize);
                let name = name.cloned().unwrap_or_else(|| format!("fault {kind}"));
                *self.faults.entry(name).or_default() += 1;
            }
            _ => {}
        }
    }
}
