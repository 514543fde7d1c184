//! What the machine withholds: how late a thread of this process is that should wake every two milliseconds, because it
//! waits for a processor.
//!
//! The bounds that are checked are tight, and tests share two cores with servers and compilers. What the machine withheld
//! is added to a bound; on a calm machine that is a millisecond.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use super::log::now_ns;

const BEAT_NS: u64 = 2_000_000;
/// A thread that wakes this late is in time.
const NOTABLE_NS: u64 = 1_000_000;

/// What was measured in this process.
static BEATS: Mutex<Beats> = Mutex::new(Beats { late: Vec::new(), due_ns: u64::MAX });

#[derive(Debug)]
struct Beats {
    late: Vec<Late>,
    /// When the measuring thread should wake next.
    due_ns: u64,
}

/// One time that the measuring thread woke too late.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// When it should have woken.
    due_ns: u64,
    /// When it did.
    to_ns: u64,
}

impl Late {
    fn within(self, from_ns: u64, to_ns: u64) -> Duration {
        let nanos = self.to_ns.min(to_ns).saturating_sub(self.due_ns.max(from_ns));
        Duration::from_nanos(nanos)
    }
}

/// What the machine withheld from some moment on. One thread measures for all in this process.
#[derive(Debug)]
pub struct Pulse {
    from_ns: AtomicU64,
}

impl Pulse {
    /// Begins to measure.
    pub fn start() -> Self {
        static BEATING: Once = Once::new();
        BEATING.call_once(|| drop(thread::spawn(beat)));
        Self { from_ns: AtomicU64::new(now_ns()) }
    }

    /// The longest that a thread was kept waiting between these two moments.
    pub fn worst_between(&self, from_ns: u64, to_ns: u64) -> Duration {
        self.between(from_ns, to_ns).1
    }

    /// Begins anew: what was before does not count any more.
    pub fn forget(&self) {
        self.from_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// What to add to a bound of something that happened between these moments: a chain of processes and
    /// threads waits for its turn several times.
    pub fn allowance(&self, from_ns: u64, to_ns: u64) -> Duration {
        4 * self.worst_between(from_ns, to_ns)
    }

    /// The allowance for something that has just taken so long.
    pub fn lately(taken: Duration) -> Duration {
        let now_ns = now_ns();
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        let pulse = Self::start();
        pulse.from_ns.store(now_ns.saturating_sub(taken_ns), Ordering::Relaxed);
        pulse.allowance(0, now_ns)
    }

    /// All that was withheld until now.
    pub fn withheld(&self) -> Withheld {
        let now_ns = now_ns();
        let (total, worst) = self.between(0, now_ns);
        let of = now_ns.saturating_sub(self.from_ns.load(Ordering::Relaxed));
        Withheld { total, worst, of: Duration::from_nanos(of) }
    }

    /// The sum of all that was withheld between these moments, and the longest of it at a time.
    fn between(&self, from_ns: u64, to_ns: u64) -> (Duration, Duration) {
        let from_ns = from_ns.max(self.from_ns.load(Ordering::Relaxed));
        let beats = lock();
        // The measuring thread may be waiting for a processor at this moment.
        let waiting = Late { due_ns: beats.due_ns, to_ns: now_ns() };
        let ended = beats.late.iter().rev().take_while(|late| late.to_ns > from_ns);
        let within = ended.chain([&waiting]).map(|late| late.within(from_ns, to_ns));
        within.fold(Default::default(), |(total, worst), late| (total + late, worst.max(late)))
    }
}

/// What the machine withheld while something ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// In all.
    pub total: Duration,
    /// At a time.
    pub worst: Duration,
    /// How long it ran.
    pub of: Duration,
}

fn beat() {
    loop {
        let due_ns = now_ns() + BEAT_NS;
        lock().due_ns = due_ns;
        thread::sleep(Duration::from_nanos(BEAT_NS));
        let to_ns = now_ns();
        let mut beats = lock();
        beats.due_ns = u64::MAX;
        if to_ns >= due_ns + NOTABLE_NS {
            beats.late.push(Late { due_ns, to_ns });
        }
    }
}

/// How long each thread of a process has waited for a processor since it began, in nanoseconds.
pub fn waited(process: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let waited = text.split(' ').nth(1)?.parse().ok()?;
        Some((thread.file_name().to_string_lossy().into_owned(), waited))
    });
    waited.collect()
}

/// How long all threads together have waited between two answers of [`waited`].
pub fn waited_between(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Duration {
    // Threads come and go: what one waited that has ended is not known, and not counted.
    let of_thread = |(thread, waited): (&String, &u64)| {
        waited.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    Duration::from_nanos(after.iter().map(of_thread).sum())
}

fn lock() -> MutexGuard<'static, Beats> {
    BEATS.lock().unwrap_or_else(PoisonError::into_inner)
}
