//! Checks the history of each object, one after the other.
//!
//! Each object has its own history file, because the records of all objects together, many millions, do not fit into
//! memory.

use std::fmt;
use std::time::Duration;

use coordination_history::{Kind, Object, Record, Rule, Rules, Why};

use crate::client::nanoseconds;
use crate::diary;
use crate::options::{Load, Options};
use crate::plan::Target;
use crate::remains;
use crate::tally::Tally;

/// Every waiter has to be served within this time, whatever happened before (L2), because holds are short here.
///
/// The library checks waiters again every 5 s. This time is shorter, because otherwise such a check could hide that a
/// waiter was not woken.
const SERVED: Duration = Duration::from_secs(2);
/// How late a call may return after its timeout: the bound of L4, and more because the machine may be busy.
const LATE: Duration = Duration::from_millis(900);

/// The result of a storm.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    grants: u64,
    /// Acquires whose caller dropped their future.
    cancelled: u64,
    /// Acquires whose timeout passed, and tries of objects that were not free.
    refused: u64,
    /// Processes that were killed.
    kills: u64,
    tally: Tally,
    /// `overlaps` is the number of violations of O1 that the checker found, `inversions` the number of those of O2 and
    /// O4.
    overlaps: u64,
    inversions: u64,
    /// Items that were handed out, and items that were acknowledged; `None` if the storm had no work queues.
    work: Option<(u64, u64)>,
    pub(crate) violations: Vec<String>,
}

/// Checks the histories of a storm.
pub(crate) fn judge(options: &Options) -> Verdict {
    let mut verdict = Verdict::default();
    for (index, target) in options.targets().iter().enumerate() {
        let path = diary::file(&options.histories(), target);
        match coordination_history::read(&path) {
            Ok(records) => match options.load {
                Load::Locks => verdict.judge(index, target, records),
                Load::Work => verdict.judge_work(index, target, &records),
            },
            Err(damage) => verdict.violations.push(format!("{}: {damage}", path.display())),
        }
    }
    verdict.check_times();
    if verdict.grants < options.grants {
        let (grants, wanted) = (verdict.grants, options.grants);
        verdict.violations.push(format!("{grants} grants in the histories, wanted: {wanted}"));
    }
    verdict
}

impl Verdict {
    fn judge(&mut self, index: usize, target: &Target, mut records: Vec<Record>) {
        records.sort_by_key(|record| record.at);
        self.tally.add(&Tally::of(&records, target.permits.is_none()));
        let report = coordination_history::check(&records, &rules(index, target));
        self.grants += report.grants;
        self.cancelled += report.cancelled;
        self.refused += report.refused.values().sum::<u64>();
        // Each kill is recorded in the histories of all objects, so the sum over all objects would count it several
        // times.
        self.kills = self.kills.max(report.crashes);
        let broken = |rule| report.broken.get(&rule).copied().unwrap_or_default();
        self.overlaps += broken(Rule::O1);
        self.inversions += broken(Rule::O2) + broken(Rule::O4);
        let told =
            report.violations.iter().map(|violation| format!("{}: {violation}", target.name));
        self.violations.extend(told);
        // The store does not fail in a storm. So no guard may be lost, and an acquire may fail only by its own timeout.
        let refused = |why| report.refused.get(&why).copied().unwrap_or_default();
        for (what, count) in [
            ("guards that were lost", report.lost + report.not_held),
            (
                "acquires that failed",
                refused(Why::Lost) + refused(Why::Closed) + refused(Why::Other),
            ),
            ("records that fit nowhere", report.misfits),
        ] {
            if count > 0 {
                self.violations.push(format!("{}: {count} {what}", target.name));
            }
        }
    }

    fn judge_work(&mut self, index: usize, target: &Target, records: &[Record]) {
        let kind = Kind::Other;
        let object = Object { id: diary::id(index), name: target.name.clone(), kind, fifo: false };
        let rules = Rules { faults: vec!["SIGKILL".to_owned()], ..Rules::new(vec![object]) };
        let report = coordination_history::check(records, &rules);
        self.grants += report.claims;
        self.kills = self.kills.max(report.crashes);
        let (handed_out, acked) = self.work.get_or_insert_default();
        *handed_out += report.handed_out;
        *acked += report.acked;
        let told =
            report.violations.iter().map(|violation| format!("{}: {violation}", target.name));
        self.violations.extend(told);
        if report.misfits > 0 {
            let text = format!("{}: {} records that fit nowhere", target.name, report.misfits);
            self.violations.push(text);
        }
    }

    fn check_times(&mut self) {
        let Tally { longest_wait, slowest_freeing, .. } = self.tally;
        if longest_wait > SERVED + LATE {
            self.violations.push(format!("somebody waited for {longest_wait:?}"));
        }
        if slowest_freeing > remains::BOUND {
            let text = format!("what a dead process held was not granted for {slowest_freeing:?}");
            self.violations.push(text);
        }
    }
}

fn rules(index: usize, target: &Target) -> Rules {
    let kind = match target.permits {
        None => Kind::Lock,
        Some(count) => Kind::Slots { count },
    };
    let object = Object { id: diary::id(index), name: target.name.clone(), kind, fifo: true };
    Rules {
        faults: vec!["SIGKILL".to_owned()],
        wait_bound: nanoseconds(SERVED + LATE),
        timeout_slack: nanoseconds(LATE),
        ..Rules::new(vec![object])
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grants, cancelled, refused, kills, .. } = self;
        if let Some((handed_out, acked)) = self.work {
            return write!(
                f,
                "{grants} claims with {handed_out} items, {acked} acknowledged, {kills} kills"
            );
        }
        let Tally { hand_overs, orphaned, longest_wait, slowest_freeing } = self.tally;
        write!(f, "{grants} grants, {cancelled} cancelled, {refused} refused, {kills} kills, ")?;
        write!(f, "{hand_overs} hand-overs, ")?;
        write!(f, "{} overlaps, {} inversions, ", self.overlaps, self.inversions)?;
        write!(f, "longest wait {longest_wait:.1?}, ")?;
        write!(f, "{orphaned} freed from the dead in at most {slowest_freeing:.1?}")
    }
}
