//! The same job in the crontabs of two hosts whose clocks differ: it runs as often as its options promise.
//!
//! The host whose clock is ahead starts first. Both believe that it is the same time.

use std::fmt;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use coordination_tests::harness::WallClock;
use rustix::process::Signal;

use super::{Store, Wrapper, written};

/// Cases at a time.
const AT_ONCE: usize = 9;
/// What the crontab says. The period does not end while we are at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Every,
    EveryWithStandby,
    AtLeast,
}

/// How the first run ends; all others succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Succeeds,
    Fails,
    IsKilled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    line: Line,
    first: First,
    /// Milliseconds by which the clocks differ.
    skew: u64,
    /// Milliseconds that the job takes.
    job: u64,
}

/// How often it started, and how often it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    started: usize,
    done: usize,
}

impl Case {
    /// All there are.
    pub(crate) fn all(skews: &[u64], jobs: &[u64]) -> Vec<Self> {
        let mut all = Vec::new();
        for line in [Line::Every, Line::EveryWithStandby, Line::AtLeast] {
            for first in [First::Succeeds, First::Fails, First::IsKilled] {
                for &skew in skews {
                    all.extend(jobs.iter().map(|&job| Self { line, first, skew, job }));
                }
            }
        }
        all
    }

    fn words(self) -> &'static str {
        match self.line {
            Line::Every => "run --singleton job --every 8784h -- ",
            Line::EveryWithStandby => "run --singleton job --every 8784h --standby 1 -- ",
            Line::AtLeast => "run --singleton job --at-least 1h -- ",
        }
    }

    /// What is promised, if the other host found the first one at work, or did not.
    fn promised(self, was_busy: bool) -> Ran {
        let (started, done) = match (self.first, self.line) {
            (First::Succeeds, _) => (1, 1),
            // It holds whether the job succeeded.
            (First::Fails, Line::AtLeast) => (1, 0),
            // Nobody came afterwards.
            (First::Fails | First::IsKilled, _) if was_busy => (1, 0),
            (First::Fails | First::IsKilled, _) => (2, 1),
        };
        Ran { started, done }
    }

    fn run(self) -> Outcome {
        let store = Store::file();
        let (first, log) = (store.path("first"), store.path("log"));
        let end = match self.first {
            First::Succeeds => "",
            First::Fails => "exit 1",
            First::IsKilled => "sleep 60",
        };
        // Who makes the directory is the first.
        let text = format!(
            "#!/bin/sh\necho started >> {log}\nif mkdir {first}.made 2>/dev/null; then\n\
             echo $PPID > {first}\nsleep {seconds}\n{end}\nfi\necho done >> {log}\n",
            log = log.display(),
            first = first.display(),
            seconds = Duration::from_millis(self.job).as_secs_f64(),
        );
        let job = store.script("job", &text);
        let ahead = WallClock::new();
        ahead.set_ahead(Duration::from_millis(self.skew));
        let host = |clock: Option<&WallClock>| {
            let words = format!("{}{job}", self.words());
            let mut coordination = store.coordination(words.split(' '));
            if let Some(clock) = clock {
                coordination.envs(clock.environment());
            }
            Wrapper::start(&mut coordination)
        };
        let start = Instant::now();
        let until = |after: u64| {
            sleep((start + Duration::from_millis(after)).saturating_duration_since(Instant::now()));
        };
        let mut hosts = vec![host(Some(&ahead))];
        let mut killed = None;
        let mut kill = |hosts: &mut Vec<Wrapper>| {
            let id = written(&first);
            sleep(Duration::from_millis(self.job / 2));
            let place = hosts.iter().position(|host| host.0.id().to_string() == id.trim());
            let mut host = hosts.remove(place.expect("one of them"));
            host.signal(Signal::KILL);
            killed = host.status().code();
        };
        if self.first == First::IsKilled && self.skew > self.job / 2 {
            kill(&mut hosts);
        }
        until(self.skew);
        hosts.push(host(None));
        if self.first == First::IsKilled && hosts.len() == 2 {
            kill(&mut hosts);
        }
        assert_eq!(killed, None);
        let codes: Vec<_> = hosts.iter_mut().map(Wrapper::code).collect();
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let count = |word: &str| text.lines().filter(|line| *line == word).count();
        let ran = Ran { started: count("started"), done: count("done") };
        Outcome { case: self, promised: self.promised(codes.contains(&Some(75))), ran, codes }
    }
}

struct Outcome {
    case: Case,
    promised: Ran,
    ran: Ran,
    codes: Vec<Option<i32>>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { line, first, skew, job } = self.case;
        let (line, first) = (format!("{line:?}"), format!("{first:?}"));
        let kept = if self.promised == self.ran { "as promised" } else { "NOT AS PROMISED" };
        write!(
            f,
            "{line:16} {first:8} skew {skew:4} ms  job {job:4} ms  started {}  done {}  {kept} {:?}",
            self.ran.started, self.ran.done, self.codes
        )
    }
}

/// Runs all of these, and prints them as a table.
pub(crate) fn as_promised(cases: &[Case]) {
    let mut broken = 0;
    for some in cases.chunks(AT_ONCE) {
        let outcomes: Vec<_> = scope(|scope| {
            let runs: Vec<_> = some.iter().map(|case| scope.spawn(|| case.run())).collect();
            runs.into_iter().map(|run| run.join().expect("it does not panic")).collect()
        });
        for outcome in outcomes {
            println!("{outcome}");
            broken += usize::from(outcome.promised != outcome.ran);
        }
    }
    assert_eq!(broken, 0, "of {} cases", cases.len());
}
