//! The results of a run, and the check of the rounds' histories.

use std::{collections::BTreeMap, fmt, path::Path, time::Duration};

use coordination_history::{Event, NEVER, Record, Report, Rule, Rules, Why, check, read};

use super::{
    Store,
    carried::{Carried, of_group},
    fleet::Book,
    nanos, nemesis,
    resource::Tally,
    sample::Needs,
    things::{Group, objects},
};
use crate::bounds::SCHEDULING;

/// What was counted in all rounds together.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Rounds whose histories were checked.
    pub rounds: u64,
    /// Acquires that returned a guard.
    pub grants: u64,
    /// Acquires that were begun.
    pub attempts: u64,
    /// Acquires that returned without a guard, by the reason.
    pub refused: BTreeMap<Why, u64>,
    /// Acquires that their caller dropped.
    pub cancelled: u64,
    /// Acquires without a result, because their client was killed.
    pub unanswered: u64,
    /// How often each fault happened, by its name.
    pub faults: BTreeMap<String, u64>,
    /// How many violations were found, by rule.
    pub broken: BTreeMap<Rule, u64>,
    /// Writes that the resource refused, because they came from a former holder.
    pub stale_writes: u64,
    /// Guards that were lost.
    pub lost: u64,
    /// Guards of the judged group that were lost at a time at which no fault could end a session.
    pub false_losses: u64,
    /// The longest time until a guard reported its loss, counted from the deadline or from the end of a later pause.
    pub latest_loss: Duration,
    /// How often `is_held` returned true.
    pub held: u64,
    /// Grants that were not checked for overlaps, because a fault may have caused an overlap.
    pub excused: u64,
    /// How many short operations were checked, and for how many objects the checker gave up its search.
    pub operations: (u64, u64),
    /// Claims of work queues, the items that were handed out to them, and the acknowledgements that removed an item.
    pub work: (u64, u64, u64),
    /// What the resource counted: writes and lost updates.
    pub(super) tally: Tally,
    /// Sessions that still existed after all clients had stopped.
    pub sessions_left: usize,
    /// The longest time for which the machine kept a thread waiting for a processor.
    pub withheld: Duration,
    /// The needs of the processes that are never killed: memory, threads and descriptors.
    pub needs: Vec<Needs>,
}

impl Summary {
    /// The number of faults.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// How many updates the half of the resource lost that does not check tokens. There should be some, because they
    /// show that the faults are hard enough.
    pub fn unfenced_lost(&self) -> u64 {
        self.tally.bare_lost
    }

    /// How many updates the half of the resource lost that checks tokens. This has to be zero.
    pub fn fenced_lost(&self) -> u64 {
        self.tally.fenced_lost
    }

    fn of(&self, rule: Rule) -> u64 {
        self.broken.get(&rule).copied().unwrap_or_default()
    }

    /// The most important results in one line.
    pub(super) fn line(&self) -> String {
        let slope = self.needs.iter().map(|needs| needs.slope).fold(f64::NEG_INFINITY, f64::max);
        format!(
            "{} grants, {} faults, {} broken, {} false losses, unfenced lost {}, RSS {slope:+.1} MiB/h",
            self.grants,
            self.faults(),
            self.broken.values().sum::<u64>(),
            self.false_losses,
            self.unfenced_lost(),
        )
    }

    fn add(&mut self, report: &Report) {
        self.grants += report.grants;
        self.attempts += report.attempts;
        self.cancelled += report.cancelled;
        self.unanswered += report.unanswered;
        self.lost += report.lost;
        self.stale_writes += report.stale_writes;
        self.held += report.held;
        self.excused += report.excused;
        self.operations.0 += report.operations;
        self.operations.1 += report.undecided;
        self.work.0 += report.claims;
        self.work.1 += report.handed_out;
        self.work.2 += report.acked;
        for (why, count) in &report.refused {
            *self.refused.entry(*why).or_default() += count;
        }
        for (rule, count) in &report.broken {
            *self.broken.entry(*rule).or_default() += count;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { fenced_writes, fenced_lost, bare_writes, bare_lost } = self.tally;
        writeln!(f, "grants               {} of {} attempts", self.grants, self.attempts)?;
        for (why, count) in &self.refused {
            writeln!(f, "  refused, {why:<11?} {count}")?;
        }
        writeln!(f, "  cancelled          {}", self.cancelled)?;
        writeln!(f, "  of the killed      {}", self.unanswered)?;
        writeln!(f, "faults               {} of {} kinds", self.faults(), self.faults.len())?;
        for (name, count) in &self.faults {
            writeln!(f, "  {count:>5}  {name}")?;
        }
        writeln!(f, "overlaps             {}", self.of(Rule::O1))?;
        writeln!(f, "  asked and held     {}; grants not judged {}", self.held, self.excused)?;
        writeln!(f, "token inversions     {}", self.of(Rule::O2))?;
        let refused = self.stale_writes;
        writeln!(f, "stale writes applied {}, refused {refused}", self.of(Rule::O3))?;
        writeln!(f, "out of order         {}", self.of(Rule::O4))?;
        writeln!(f, "late or lost waiters {}", self.of(Rule::O5))?;
        writeln!(f, "entries left         {}; sessions {}", self.of(Rule::O6), self.sessions_left)?;
        let (operations, undecided) = self.operations;
        writeln!(
            f,
            "wrong answers        {} of {operations}, {undecided} undecided",
            self.of(Rule::O7)
        )?;
        let (claims, items, acked) = self.work;
        writeln!(
            f,
            "wrong work           {} of {claims} claims with {items} items, {acked} acknowledged",
            self.of(Rule::O8)
        )?;
        writeln!(f, "guards lost          {}; false losses {}", self.lost, self.false_losses)?;
        writeln!(f, "latest loss told     {:.1} ms late", self.latest_loss.as_secs_f64() * 1e3)?;
        writeln!(
            f,
            "updates lost         {fenced_lost} of {fenced_writes} fenced, {bare_lost} of {bare_writes} not"
        )?;
        writeln!(f, "threads kept waiting {:.1} ms at worst", self.withheld.as_secs_f64() * 1e3)?;
        for Needs { rss_mib: (first, last), slope, threads, descriptors } in &self.needs {
            writeln!(
                f,
                "a survivor           RSS {first:.1} → {last:.1} MiB, {slope:+.2} MiB/h; threads {} → {}; \
                 descriptors {} → {}",
                threads.0, threads.1, descriptors.0, descriptors.1
            )?;
        }
        Ok(())
    }
}

/// Checks the history of one round after the other.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) store: Store,
    pub(super) crash_release: Duration,
    pub(super) wait_bound: Duration,
    pub(super) summary: Summary,
    carried: Carried,
}

/// If the machine kept a thread waiting for longer than this, a session may be lost although there was no fault.
const STARVED: Duration = Duration::from_millis(300);

impl Judge {
    pub(super) fn new(store: Store, crash_release: Duration, wait_bound: Duration) -> Self {
        let (summary, carried) = (Summary::default(), Carried::default());
        Self { store, crash_release, wait_bound, summary, carried }
    }

    /// Writes what earlier rounds have left behind into the history of a new round, so that the checker knows it.
    pub(super) fn carry_over(&self, book: &Book) {
        self.carried.tell(book);
    }

    /// Checks the history of a round, and returns descriptions of what is wrong. `mixed` is when the second part of the
    /// schedule began, in which several faults happen at a time.
    pub(super) fn judge(&mut self, path: &Path, mixed: u64, withheld: Duration) -> Vec<String> {
        let records = match read(path) {
            Ok(records) => records,
            Err(damage) => return vec![damage.to_string()],
        };
        let mut failures = Vec::new();
        for group in Group::ALL {
            let own = of_group(&records, group);
            let report = check(&own, &self.rules(group, withheld));
            self.summary.add(&report);
            if group == Group::Judged {
                self.summary.faults_of(&report);
            }
            let name = group.name();
            failures.extend(report.violations.iter().map(|found| format!("{name}: {found}")));
            if report.misfits > 0 {
                failures.push(format!("{name}: {} records fit nowhere", report.misfits));
            }
        }
        let losses = Losses::new(&records, self.store);
        let false_losses = losses.unexplained(&of_group(&records, Group::Judged), mixed);
        if withheld < STARVED {
            failures.extend(false_losses.iter().map(|record| format!("a false loss: {record:?}")));
        }
        self.summary.false_losses += false_losses.len() as u64;
        self.summary.latest_loss = self.summary.latest_loss.max(latest(&records));
        self.summary.withheld = self.summary.withheld.max(withheld);
        self.summary.rounds += 1;
        if self.summary.fenced_lost() > 0 {
            failures.push(format!("{} fenced updates were lost", self.summary.fenced_lost()));
        }
        self.carried.learn(&records);
        failures
    }

    fn rules(&self, group: Group, withheld: Duration) -> Rules {
        let scheduling = nanos(4 * withheld);
        let rules = Rules::new(objects(group));
        Rules {
            faults: nemesis::names(),
            untimed: nemesis::untimed(self.store, group == Group::Spoiled),
            wait_bound: nanos(self.wait_bound) + scheduling,
            timeout_slack: rules.timeout_slack + nanos(SCHEDULING) + scheduling,
            lost_slack: rules.lost_slack + scheduling,
            losses_told: true,
            entry_bound: nanos(self.crash_release + SCHEDULING) + scheduling,
            ..rules
        }
    }
}

impl Summary {
    fn faults_of(&mut self, report: &Report) {
        for (name, count) in &report.faults {
            *self.faults.entry(name.clone()).or_default() += count;
        }
    }
}

/// The times during which faults may end sessions.
struct Losses(Vec<(u64, u64)>);

impl Losses {
    fn new(records: &[Record], store: Store) -> Self {
        // If a heartbeat fails during a fault, the session may be lost up to a lease later.
        let after = nanos(store.ttl().unwrap_or_default() + 4 * store.heartbeat());
        let mut open = BTreeMap::new();
        let mut spans = Vec::new();
        let mut sorted: Vec<_> = records.iter().collect();
        sorted.sort_by_key(|record| record.at);
        for record in sorted {
            match record.event {
                Event::Fault { kind } if !nemesis::keeps(kind) => {
                    open.insert(kind, record.at);
                }
                Event::FaultEnd { kind } => {
                    spans.extend(open.remove(&kind).map(|from| (from, record.at + after)));
                }
                _ => {}
            }
        }
        Self(spans)
    }

    /// The losses in the first part of the schedule (before `mixed`) that no fault explains, because they happened at
    /// times at which no fault can have ended a session.
    fn unexplained(&self, records: &[Record], mixed: u64) -> Vec<Record> {
        let is_false = |record: &&Record| {
            matches!(record.event, Event::Lost { .. })
                && record.at < mixed
                && !self.0.iter().any(|(from, to)| (*from..=*to).contains(&record.at))
        };
        records.iter().filter(is_false).copied().collect()
    }
}

/// The longest time until a guard reported its loss. It is counted from the deadline, or from the end of the client's
/// last pause, if that is later.
fn latest(records: &[Record]) -> Duration {
    // The end of a pause is recorded only after the process was resumed. So the process may record its loss before the
    // end of the pause is recorded. Such a loss counts as reported without delay.
    let mut pauses: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for record in records {
        let of_client = pauses.entry(record.client).or_default();
        match record.event {
            Event::Paused => of_client.push((record.at, NEVER)),
            Event::Resumed => of_client.iter_mut().for_each(|(_, to)| *to = record.at.min(*to)),
            _ => {}
        }
    }
    let late = |record: &Record| {
        let Event::Lost { deadline } = record.event else { return None };
        let begun = pauses.get(&record.client).into_iter().flatten();
        let woken = begun.filter(|(from, _)| *from <= record.at).map(|(_, to)| *to).max();
        (deadline != NEVER).then(|| record.at.saturating_sub(deadline.max(woken.unwrap_or(0))))
    };
    Duration::from_nanos(records.iter().filter_map(late).max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nemesis::Fault;

    fn record(at_ms: u64, event: Event) -> Record {
        Record { at: at_ms * 1_000_000, client: 1, attempt: 1, object: 1, event }
    }

    fn history(fault: Fault) -> Vec<Record> {
        let kind = fault.kind();
        vec![
            record(1_000, Event::Fault { kind }),
            record(1_500, Event::Lost { deadline: 1_490_000_000 }),
            record(2_000, Event::FaultEnd { kind }),
            record(20_000, Event::Lost { deadline: 19_999_000_000 }),
        ]
    }

    #[test]
    fn a_loss_is_false_where_no_fault_explains_it() {
        let count = |fault, mixed| {
            let history = history(fault);
            Losses::new(&history, Store::ETCD).unexplained(&history, mixed).len()
        };
        assert_eq!(count(Fault::ClientPaused, u64::MAX), 1);
        assert_eq!(count(Fault::Delay, u64::MAX), 2);
        assert_eq!(count(Fault::Delay, 10_000_000_000), 1);
    }

    #[test]
    fn the_latest_loss_counts_from_the_deadline_or_the_waking() {
        let history = history(Fault::Delay);
        assert_eq!(latest(&history), Duration::from_millis(10));
        let paused = |resumed| {
            let pause = [record(1_100, Event::Paused), record(resumed, Event::Resumed)];
            latest(&[&pause[..], &history].concat())
        };
        assert_eq!(paused(1_497), Duration::from_millis(3));
        // One of the losses was reported before the end of the pause was recorded, so it is ignored. The other loss is
        // the latest.
        assert_eq!(paused(1_502), Duration::from_millis(1));
    }
}
