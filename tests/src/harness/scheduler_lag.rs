//! Measures how much processor time the machine withholds. For this, a thread that should wake every two milliseconds
//! measures how late it wakes, and counts how many threads want a processor.
//!
//! The scheduler prefers a thread that mostly sleeps. So the lateness of the measuring thread is the least that any
//! thread suffers; a thread or a server that computes more waits longer.
//!
//! The measurement is needed because the bounds of the checks are tight, and the tests share two processors with
//! servers and compilers. What the machine withheld is added to a bound. On a calm machine that is about a millisecond.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use std::{fmt, fs, thread};

use super::log::now_ns;

const BEAT_NS: u64 = 2_000_000;
/// Lateness is recorded only if it is at least this long.
const NOTABLE_NS: u64 = 1_000_000;
/// The measuring thread counts the threads that want a processor only at every tenth time that it wakes.
const COUNTED: u64 = 10;

/// The name that the library gives to the thread of a session.
const SESSION: &str = "coordination";

/// The measurements of this process, which all values of [`SchedulerLag`] share.
static BEATS: Mutex<Beats> = Mutex::new(Beats {
    late: Vec::new(),
    due_ns: u64::MAX,
    counts: Counts { times: 0, found: 0, lately: 0.0 },
});

#[derive(Debug)]
struct Beats {
    late: Vec<Late>,
    /// When the measuring thread should wake the next time.
    due_ns: u64,
    counts: Counts,
}

/// How often the threads that want a processor were counted, on the whole machine (`times`), and the sum of all these
/// counts (`found`).
#[derive(Clone, Copy, Debug)]
struct Counts {
    times: u64,
    found: u64,
    /// A moving average of the counts, in which the newest counts weigh most.
    lately: f64,
}

/// One time at which the measuring thread woke too late.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// When the thread should have woken.
    due_ns: u64,
    /// When the thread woke.
    to_ns: u64,
}

impl Late {
    fn within(self, from_ns: u64, to_ns: u64) -> Duration {
        let nanos = self.to_ns.min(to_ns).saturating_sub(self.due_ns.max(from_ns));
        Duration::from_nanos(nanos)
    }
}

/// Tells what the machine withheld since this value was created. One thread measures for all such values of this
/// process.
#[derive(Debug)]
pub struct SchedulerLag {
    from_ns: AtomicU64,
    /// The counts when this value was created.
    counts: Counts,
}

impl SchedulerLag {
    /// Begins to measure.
    pub fn start() -> Self {
        static BEATING: Once = Once::new();
        BEATING.call_once(|| drop(thread::spawn(beat)));
        Self { from_ns: AtomicU64::new(now_ns()), counts: lock().counts }
    }

    /// The longest time for which the measuring thread waited for a processor between these two moments.
    pub fn worst_between(&self, from_ns: u64, to_ns: u64) -> Duration {
        self.between(from_ns, to_ns).1
    }

    /// Begins to measure again: what was withheld before this call is ignored.
    pub fn forget(&self) {
        self.from_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// The time to add to a bound of an operation that ran between these two moments. It is four times the longest
    /// lateness, because several processes and threads take part in an operation, and each may have to wait for a
    /// processor.
    pub fn allowance(&self, from_ns: u64, to_ns: u64) -> Duration {
        4 * self.worst_between(from_ns, to_ns)
    }

    /// How much time was withheld from an operation that has just ended and took `taken`. This is the longer of two
    /// times: the allowance, and the time for which threads that only compute had to wait.
    pub fn lately(taken: Duration) -> Duration {
        let now_ns = now_ns();
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        let lag = Self::start();
        lag.from_ns.store(now_ns.saturating_sub(taken_ns), Ordering::Relaxed);
        let share = 1.0 - processors() / lag.counts.lately.max(processors());
        lag.allowance(0, now_ns).max(taken.mul_f64(share))
    }

    /// Everything that was withheld from the beginning of the measurement until now.
    pub fn withheld(&self) -> Withheld {
        let now_ns = now_ns();
        let (total, worst) = self.between(0, now_ns);
        let of = now_ns.saturating_sub(self.from_ns.load(Ordering::Relaxed));
        let counts = lock().counts;
        let times = (counts.times - self.counts.times).max(1);
        let running = (counts.found - self.counts.found) as f64 / times as f64;
        Withheld { total, worst, of: Duration::from_nanos(of), running }
    }

    /// The sum of all lateness between these moments, and the longest single one.
    fn between(&self, from_ns: u64, to_ns: u64) -> (Duration, Duration) {
        let from_ns = from_ns.max(self.from_ns.load(Ordering::Relaxed));
        let beats = lock();
        // The measuring thread may be late at this moment. This lateness is not recorded yet, so it is added.
        let waiting = Late { due_ns: beats.due_ns, to_ns: now_ns() };
        let ended = beats.late.iter().rev().take_while(|late| late.to_ns > from_ns);
        let within = ended.chain([&waiting]).map(|late| late.within(from_ns, to_ns));
        within.fold(Default::default(), |(total, worst), late| (total + late, worst.max(late)))
    }
}

/// What the machine withheld while something ran.
#[derive(Clone, Copy, Debug)]
pub struct Withheld {
    /// The sum of all times that were withheld.
    pub total: Duration,
    /// The longest time that was withheld without a break.
    pub worst: Duration,
    /// How long the measured work took.
    pub of: Duration,
    /// The mean number of threads on the whole machine that ran or wanted to run.
    pub running: f64,
}

impl fmt::Display for Withheld {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, worst, of, running } = self;
        write!(
            formatter,
            "withheld {total:.1?} of {of:.1?}, {worst:.1?} at a time, {running:.1} threads"
        )
    }
}

fn beat() {
    for nth in 0_u64.. {
        let due_ns = now_ns() + BEAT_NS;
        lock().due_ns = due_ns;
        thread::sleep(Duration::from_nanos(BEAT_NS));
        let to_ns = now_ns();
        let running = if nth % COUNTED == 0 { running() } else { None };
        let mut beats = lock();
        beats.due_ns = u64::MAX;
        if let Some(running) = running {
            beats.counts.times += 1;
            beats.counts.found += running;
            beats.counts.lately += (running as f64 - beats.counts.lately) / 10.0;
        }
        if to_ns >= due_ns + NOTABLE_NS {
            beats.late.push(Late { due_ns, to_ns });
        }
    }
}

/// How many threads can run at the same time.
pub(super) fn processors() -> f64 {
    thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// How many threads on the whole machine run or want to run at this moment. If `/proc/loadavg` says `0.71 0.42 0.20
/// 2/164 31505`, it is two.
fn running() -> Option<u64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// For each thread of a process, by thread id: how long it has waited for a processor since it began, in nanoseconds.
pub fn waited(process: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let waited = text.split(' ').nth(1)?.parse().ok()?;
        Some((thread.file_name().to_string_lossy().into_owned(), waited))
    });
    waited.collect()
}

/// The threads of the sessions that this process has opened since this value was created, and of those that other checks
/// have opened at the same moment.
///
/// The thread that measures the lateness mostly sleeps, and the scheduler prefers it. A session's thread computes, so it
/// may have to wait longer. The kernel knows for how long.
#[derive(Debug)]
pub struct SessionThreads {
    /// Those that were there before.
    others: BTreeMap<String, u64>,
}

impl SessionThreads {
    /// To be called before the sessions are opened.
    pub fn begin() -> Self {
        Self { others: Self::all() }
    }

    /// For each thread: how long it has waited for a processor since it began, in nanoseconds.
    pub fn waited(&self) -> BTreeMap<String, u64> {
        let mut waited = Self::all();
        waited.retain(|thread, _| !self.others.contains_key(thread));
        waited
    }

    /// The longest time for which one of the threads has waited for a processor since `before`.
    pub fn longest_since(&self, before: &BTreeMap<String, u64>) -> Duration {
        let waited = self.waited().into_iter().map(|(thread, waited)| {
            waited.saturating_sub(before.get(&thread).copied().unwrap_or_default())
        });
        Duration::from_nanos(waited.max().unwrap_or_default())
    }

    fn all() -> BTreeMap<String, u64> {
        let is_a_sessions = |thread: &str| {
            let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            name.is_ok_and(|name| name.trim_end() == SESSION)
        };
        let mut waited = waited(std::process::id());
        waited.retain(|thread, _| is_a_sessions(thread));
        waited
    }
}

/// The sum of the times for which the threads of a process waited for a processor between two calls of [`waited`].
pub fn waited_between(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Duration {
    // If a thread has ended in between, its waiting time is unknown and not included.
    let of_thread = |(thread, waited): (&String, &u64)| {
        waited.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    Duration::from_nanos(after.iter().map(of_thread).sum())
}

fn lock() -> MutexGuard<'static, Beats> {
    BEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_sessions_are_told_from_others() {
        let threads = SessionThreads::begin();
        let are_found = |name: &str| {
            let look = || {
                let own = fs::read_link("/proc/thread-self").expect("Linux has it");
                let own = own.file_name().expect("a number").to_string_lossy().into_owned();
                let are_there = [&threads, &SessionThreads::begin()];
                are_there.map(|threads| threads.waited().contains_key(&own))
            };
            thread::scope(|scope| {
                let thread = thread::Builder::new().name(name.to_owned());
                thread.spawn_scoped(scope, look).expect("a thread").join().expect("no panic")
            })
        };
        assert_eq!(
            are_found(SESSION),
            [true, false],
            "it began after the one and before the other"
        );
        assert_eq!(are_found("another"), [false, false]);
    }
}
