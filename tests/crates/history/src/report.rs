//! What the checker found.

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Event, Record, Why};
use crate::rules::Rules;

/// The rules of the checker; each is taught by its module under `rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Mutual exclusion.
    O1,
    /// Fencing tokens rise.
    O2,
    /// The fenced resource is never written by an old holder, and loses nothing.
    O3,
    /// First come, first served.
    O4,
    /// Everybody is answered in time.
    O5,
    /// Nothing is left behind.
    O6,
    /// The small answers are linearizable.
    O7,
}

impl Rule {
    /// Whether a slow machine can break it: the others hold whatever the machine does.
    pub fn is_of_time(self) -> bool {
        matches!(self, Self::O5 | Self::O6)
    }
}

/// A promise was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What happened, with the records that prove it.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// So many texts of a rule are kept.
pub(crate) const TOLD: u64 = 10;

/// What a history contains, and what is wrong with it.
///
/// A report without violations says little where there was nothing to judge: see that the numbers are as large
/// as the run should make them, and that [`misfits`](Self::misfits) and [`undecided`](Self::undecided) are 0.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first of each rule.
    pub violations: Vec<Violation>,
    /// How many there were of each rule; a rule stops counting at an object that has many.
    pub broken: BTreeMap<Rule, u64>,
    /// All records.
    pub records: u64,
    /// From the first record to the last, in nanoseconds.
    pub span: u64,
    /// Acquires begun.
    pub attempts: u64,
    /// Acquires that returned a guard.
    pub grants: u64,
    /// Acquires that returned without.
    pub refused: BTreeMap<Why, u64>,
    /// Acquires dropped by their caller.
    pub cancelled: u64,
    /// Acquires that neither returned nor were dropped; those of crashed clients too.
    pub unanswered: u64,
    /// Guards that told their loss.
    pub lost: u64,
    /// Guards whose release was confirmed.
    pub released: u64,
    /// `is_held` said true.
    pub held: u64,
    /// `is_held` said false.
    pub not_held: u64,
    /// Writes that the fenced resource applied.
    pub writes: u64,
    /// Writes that the fenced resource refused.
    pub stale_writes: u64,
    /// Small operations.
    pub operations: u64,
    /// Objects whose entries were counted at the end.
    pub counted: u64,
    /// Clients killed.
    pub crashes: u64,
    /// Clients stopped.
    pub pauses: u64,
    /// Faults by name.
    pub faults: BTreeMap<String, u64>,
    /// Grants that O1 did not judge, as a fault broke what timed exclusion rests on.
    pub excused: u64,
    /// Objects of O7 whose search was given up: neither right nor wrong.
    pub undecided: u64,
    /// Records that fit nowhere: an attempt told twice, an unknown object. The recorder is wrong.
    pub misfits: u64,
}

impl Report {
    /// Whether nothing is wrong, and all that there was could be judged.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.undecided == 0 && self.misfits == 0
    }

    /// Adds a record to the numbers.
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
