//! The study of pauses: many clients that hold locks are stopped and continued at random, for 0.2 to 4 leases.
//!
//! Three things must never happen: a guard claims to be held after another client was granted the lock (S1); a guard
//! reports its loss more than 50 ms late (T2); a guard is lost although the pause was short (F-5). All times are of
//! CLOCK_MONOTONIC, which is the same clock in all processes. A time is read at a moment that cannot make a correct
//! guard look wrong: the time of a grant is read after the acquire has returned, and the time of a probe is read before
//! the probe calls `is_held`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use coordination::{Coordinator, LockGuard};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::crash::since;
use super::{HEARTBEAT, Process, SCHEDULING, Site};
use crate::checks::tools::Chance;
use crate::harness::{SchedulerLag, log::now_ns, wait_until, waited, waited_between};

/// T2: how soon after a loss, or after SIGCONT, a guard must report it.
const AT_ONCE: Duration = Duration::from_millis(50);
/// The timeout of waits; longer than any of them should take.
const LONG: Duration = Duration::from_secs(30);

/// The parameters of a study.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// How often a process is stopped.
    pub count: usize,
    /// How many processes run at the same time; each has a lock of its own.
    pub processes: usize,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// The results of a study.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// How often a process was stopped.
    pub stops: usize,
    /// After how many stops the lock was lost.
    pub losses: usize,
    /// After how many stops the lock was still held.
    pub kept: usize,
    /// The longest time that a guard took to report its loss. It counts from SIGCONT, or from when the guard was last
    /// held if that was later.
    pub latest: Duration,
    /// Like `latest`, without the time for which the process waited for a processor.
    pub latest_by_itself: Duration,
    /// The longest time for which the threads of a process waited for a processor from SIGCONT until the guard's
    /// report, in sum.
    pub withheld: Duration,
    /// A description of each violation of what must never happen.
    pub wrong: Vec<String>,
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stops, losses, kept, latest, latest_by_itself, withheld, wrong } = self;
        write!(
            formatter,
            "{stops} stops, {losses} losses, {kept} kept, {} wrong, latest lost event {:.1} ms \
             ({:.1} ms but for waiting for a processor, which was up to {:.1} ms for all threads of one)",
            wrong.len(),
            millis(*latest),
            millis(*latest_by_itself),
            millis(*withheld),
        )?;
        wrong.iter().try_for_each(|wrong| write!(formatter, "\n  {wrong}"))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("short")
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

impl Study {
    /// Stops processes at this site, `count` times in all.
    ///
    /// # Panics
    ///
    /// If the store fails. Violations are not panics: they are in the figures.
    pub fn run(&self, site: &Site) -> Figures {
        let runtime = Runtime::new().expect("a runtime");
        // The waiter has a long lease, so that it keeps its session however slow the machine is.
        let waiter = site.builder("waiter").ttl(LONG).heartbeat(LONG / 6);
        let waiter = runtime.block_on(waiter.connect(&site.url)).expect("the store is there");
        let left = AtomicUsize::new(self.count);
        let lag = SchedulerLag::start();
        let figures = Mutex::new(Figures::default());
        let mut chance = Chance::of(self.seed);
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.processes)
                .map(|number| {
                    let lane = Lane {
                        site,
                        runtime: &runtime,
                        waiter: &waiter,
                        lag: &lag,
                        figures: &figures,
                        lock: format!("paused-{number}"),
                    };
                    let chance = chance.fork();
                    let left = &left;
                    scope.spawn(move || lane.run(chance, left))
                })
                .collect();
            lanes.into_iter().for_each(|lane| lane.join().expect("no lane fails"));
        });
        figures.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One process with its lock, and the waiter for that lock.
struct Lane<'a> {
    site: &'a Site,
    runtime: &'a Runtime,
    waiter: &'a Coordinator,
    lag: &'a SchedulerLag,
    figures: &'a Mutex<Figures>,
    lock: String,
}

impl Lane<'_> {
    fn run(&self, mut chance: Chance, left: &AtomicUsize) {
        let process = Process::unconnected(self.site);
        // All processes connect at the same time, so some attempts may fail.
        let connected = || process.try_connect(self.site, &self.lock).is_ok();
        assert!(wait_until(LONG, connected), "{} does not get in", self.lock);
        let take = |left: usize| left.checked_sub(1);
        while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            self.stop(&process, &mut chance);
        }
    }

    /// Makes the waiter acquire the lock; the task returns the guard, and the time at which the lock was granted.
    fn wait(&self) -> JoinHandle<(LockGuard, u64)> {
        let lock = self.waiter.lock(&self.lock).expect("a good name");
        self.runtime.spawn(async move {
            let guard = lock.acquire(None).await.expect("it is free one day");
            (guard, now_ns())
        })
    }

    fn until_somebody_waits(&self) {
        let lock = self.waiter.lock(&self.lock).expect("a good name");
        let listed = || {
            self.runtime
                .block_on(lock.holders())
                .is_ok_and(|all| all.iter().any(|contender| contender.member == "waiter"))
        };
        assert!(wait_until(LONG, listed), "nobody waits for {}", self.lock);
    }

    /// Stops the process once while it holds the lock.
    fn stop(&self, process: &Process, chance: &mut Chance) {
        let ttl = self.site.lease();
        // On a busy machine the process may lose its session at any moment. Then an acquire may fail, and the process
        // opens another session. So the acquire is repeated.
        let acquired = || process.acquire_within(&self.lock, LONG / 6).is_ok();
        assert!(wait_until(LONG, acquired), "{} is not to be had", self.lock);
        process.call(json!({ "command": "watch_lost", "handle": self.lock }));
        process.call(json!({ "command": "probe_held", "handle": self.lock, "every_us": 1_000 }));
        let waiting = self.wait();
        self.until_somebody_waits();
        thread::sleep(HEARTBEAT.mul_f64(chance.below(1_000) as f64 / 1_000.0));
        let pause = ttl.mul_f64(0.2 + 3.8 * chance.below(10_000) as f64 / 10_000.0);
        let pausing = now_ns();
        process.pause();
        let paused = now_ns();
        thread::sleep(pause);
        let waited = waited(process.child().id());
        let resumed = now_ns();
        process.resume();
        // This is long enough for a heartbeat and its reply, or for the report of a loss.
        thread::sleep(2 * HEARTBEAT + SCHEDULING);
        let is_lost = !process.is_held(&self.lock);
        let (granted, told) = if is_lost {
            let told = self.lost(process, &waited, resumed);
            let (guard, granted) = self.runtime.block_on(waiting).expect("no panic");
            self.runtime.block_on(guard.release()).expect("the store confirms");
            (Some(granted), told)
        } else {
            // The lock may be lost at this very moment, so an error of the release is ignored.
            let _ = process.try_call(json!({ "command": "release", "handle": self.lock }));
            let (guard, _) = self.runtime.block_on(waiting).expect("no panic");
            self.runtime.block_on(guard.release()).expect("the store confirms");
            (None, None)
        };
        // The guard of a lost lock still exists, and a thread still probes it. So the guard is dropped here, and what
        // is still reported of it is discarded.
        let _ = process.try_call(json!({ "command": "drop", "handle": self.lock }));
        let late = process.event_named("lost", Duration::from_millis(20));
        let _ = late.and(process.event_named("not_held", Duration::ZERO));
        self.judge(&Stop { pause, pausing, paused, resumed, told, granted, ttl });
    }

    /// What the process reported of the loss of its lock; `None` if it reported nothing.
    fn lost(
        &self,
        process: &Process,
        before: &BTreeMap<String, u64>,
        resumed: u64,
    ) -> Option<Told> {
        let told = process.event_named("not_held", LONG).zip(process.event_named("lost", LONG));
        let (not_held, lost) = told?;
        let last_true = not_held["last_true_before_ns"].as_u64().unwrap_or_default();
        let told = lost["t_ns"].as_u64().unwrap_or(u64::MAX);
        // The guard was held at least until its probe last returned `true`.
        let due = resumed.max(last_true);
        let waited = serde_json::from_value(lost["waited"].clone()).expect("times of threads");
        let withheld = waited_between(before, &waited);
        Some(Told { last_true, due, at: told, withheld })
    }

    fn judge(&self, stop: &Stop) {
        let Stop { pause, pausing, paused, resumed, told, granted, ttl } = *stop;
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.stops += 1;
        let Some(granted) = granted else {
            figures.kept += 1;
            if since(paused, resumed) > self.site.valid_for() {
                figures.wrong.push(format!("{}: held after {pause:?}", self.lock));
            }
            return;
        };
        figures.losses += 1;
        let Some(Told { last_true, due, at, withheld }) = told else {
            figures.wrong.push(format!("{}: no word of a loss by {pause:?}", self.lock));
            return;
        };
        let late = since(due, at);
        let by_itself = late.saturating_sub(withheld);
        figures.latest = figures.latest.max(late);
        figures.withheld = figures.withheld.max(withheld);
        figures.latest_by_itself = figures.latest_by_itself.max(by_itself);
        if by_itself > AT_ONCE {
            let text = format!(
                "{}: told {late:?} late, {withheld:?} of it withheld, after {pause:?}",
                self.lock
            );
            figures.wrong.push(text);
        }
        if last_true >= granted {
            let text = format!("{}: held while another had it, after {pause:?}", self.lock);
            figures.wrong.push(text);
        }
        let stood_still = since(pausing, resumed);
        // `withheld` was measured in the stopped process itself, which is more exact than the lag of the test's process.
        let busy = self.lag.allowance(pausing.saturating_sub(nanos(ttl)), at).max(withheld);
        // How much of the lease may be used up besides the pause: the last confirmed heartbeat before the pause, and
        // the next one after it, are each up to a heartbeat interval away. On some stores a heartbeat only proves that
        // the heartbeat before it has arrived, so the interval between these two heartbeats is added too.
        let unproved = 2 * HEARTBEAT + self.site.server().proof_lag(HEARTBEAT) + SCHEDULING;
        if stood_still + unproved + busy < self.site.valid_for() {
            let text =
                format!("{}: lost by a pause of {stood_still:?}, {busy:?} withheld", self.lock);
            figures.wrong.push(text);
        }
    }
}

/// A loss, as its process reported it.
#[derive(Clone, Copy)]
struct Told {
    /// The start of the last call of `is_held` that returned `true`.
    last_true: u64,
    /// The earliest moment at which the guard could report the loss: when it was last held, or at SIGCONT if that was
    /// later.
    due: u64,
    /// When the guard reported the loss.
    at: u64,
    /// How long the machine let the threads of the process wait for a processor, from SIGCONT until the guard reported
    /// the loss.
    withheld: Duration,
}

/// One stop of a process: its intended length `pause`, and the moments around it, in nanoseconds. SIGSTOP was sent
/// between `pausing` and `paused`, and SIGCONT right after `resumed`.
struct Stop {
    pause: Duration,
    pausing: u64,
    paused: u64,
    resumed: u64,
    /// When the waiter got the lock, if the process lost it.
    granted: Option<u64>,
    /// If this is `None` although the lock was lost, the guard never reported the loss, which is a violation.
    told: Option<Told>,
    ttl: Duration,
}
