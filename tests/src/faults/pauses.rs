//! The pause study: many clients that hold locks are stopped and continued at random, for 0.2 to 4 leases.
//!
//! What must never be seen: a guard that says it is held when somebody else has been granted the lock
//! (S1), one that is told of its loss more than 50 ms late (T2), and one that was lost though the
//! pause was short (F-5). All times are of CLOCK_MONOTONIC, which is one clock for all processes, and each is
//! read on the side that accuses nobody wrongly: a grant after it was had, a probe before it asked.

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

/// T2: how soon after a loss, or after SIGCONT, it must be told.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

/// How many pauses, and which.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// How often a process is stopped.
    pub count: usize,
    /// How many processes are there side by side, each with a lock of its own.
    pub processes: usize,
    /// What all random numbers are made of.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// How often a process was stopped.
    pub stops: usize,
    /// How many of these the lock did not survive.
    pub losses: usize,
    /// How many it survived.
    pub kept: usize,
    /// The latest word of a loss, after SIGCONT or the last moment of the guard, whichever was later.
    pub latest: Duration,
    /// The same, less what the machine kept a process waiting for a processor meanwhile.
    pub latest_by_itself: Duration,
    /// The longest that the machine kept a process' threads waiting then, all together.
    pub withheld: Duration,
    /// What must not be, in words.
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
    /// Stops processes at this site until there were enough.
    ///
    /// # Panics
    ///
    /// When the store fails. What must not be is in the figures.
    pub fn run(&self, site: &Site) -> Figures {
        let runtime = Runtime::new().expect("a runtime");
        // It is not what is studied, and stays whatever the machine does.
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

/// One process, its lock, and who waits for it.
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
        // They all come at once.
        let connected = || process.try_connect(self.site, &self.lock).is_ok();
        assert!(wait_until(LONG, connected), "{} does not get in", self.lock);
        let take = |left: usize| left.checked_sub(1);
        while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            self.stop(&process, &mut chance);
        }
    }

    /// Somebody else waits for the lock, and answers when it was had.
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
        // On a busy machine it may lose its session at any moment, and has another soon.
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
        // A heartbeat, and its answer, or the loss.
        thread::sleep(2 * HEARTBEAT + SCHEDULING);
        let is_lost = !process.is_held(&self.lock);
        let (granted, told) = if is_lost {
            let told = self.lost(process, &waited, resumed);
            let (guard, granted) = self.runtime.block_on(waiting).expect("no panic");
            self.runtime.block_on(guard.release()).expect("the store confirms");
            (Some(granted), told)
        } else {
            // It may be lost in this very moment, which is no news by then.
            let _ = process.try_call(json!({ "command": "release", "handle": self.lock }));
            let (guard, _) = self.runtime.block_on(waiting).expect("no panic");
            self.runtime.block_on(guard.release()).expect("the store confirms");
            (None, None)
        };
        // A guard that was lost is still there, and its probe with it.
        let _ = process.try_call(json!({ "command": "drop", "handle": self.lock }));
        let late = process.event_named("lost", Duration::from_millis(20));
        let _ = late.and(process.event_named("not_held", Duration::ZERO));
        self.judge(&Stop { pause, pausing, paused, resumed, told, granted, ttl });
    }

    /// What the process saw of its loss, if it was told.
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
        // The last moment of the guard is not before the probe's last yes.
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
        // What kept its own threads waiting after that is known better than by the lag of another process.
        let busy = self.lag.allowance(pausing.saturating_sub(nanos(ttl)), at).max(withheld);
        // The last heartbeat before and the first one after that are confirmed, and what they do not prove yet.
        let unproved = 2 * HEARTBEAT + self.site.server().proof_lag(HEARTBEAT) + SCHEDULING;
        if stood_still + unproved + busy < self.site.valid_for() {
            let text =
                format!("{}: lost by a pause of {stood_still:?}, {busy:?} withheld", self.lock);
            figures.wrong.push(text);
        }
    }
}

/// A loss, as its process saw it.
#[derive(Clone, Copy)]
struct Told {
    /// When it had begun to ask for the last time that it was told "held".
    last_true: u64,
    /// When it was to be told of the loss.
    due: u64,
    /// When it was.
    at: u64,
    /// How long the machine let the process' threads wait for a processor from SIGCONT until then.
    withheld: Duration,
}

/// One stop: how long it was meant to be, and when what happened.
struct Stop {
    pause: Duration,
    pausing: u64,
    paused: u64,
    resumed: u64,
    /// When somebody else had the lock, if it was lost.
    granted: Option<u64>,
    /// None where it was lost: nobody told the process, which must not be.
    told: Option<Told>,
    ttl: Duration,
}
