//! How late a thread of this process is when it should wake: what the machine keeps it waiting for a processor.
//!
//! The contract's bounds are tight, and tests share two cores with compilers. What the machine withheld is
//! added to a bound; on a calm one that is a millisecond.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fs, thread};

use super::log::now_ns;

const BEAT_NS: u64 = 2_000_000;
/// What is less is nobody's concern.
const NOTABLE_NS: u64 = 1_000_000;

/// A thread that wakes every 2 ms, as long as this lives.
#[derive(Debug)]
pub struct Pulse(Arc<Mutex<Vec<Late>>>);

#[derive(Clone, Copy, Debug)]
struct Late {
    /// When it should have woken.
    due_ns: u64,
    /// When it did.
    to_ns: u64,
}

impl Pulse {
    /// Begins to measure.
    pub fn start() -> Self {
        let all = Arc::new(Mutex::new(Vec::new()));
        let kept: Weak<_> = Arc::downgrade(&all);
        thread::spawn(move || {
            while let Some(all) = kept.upgrade() {
                let due_ns = now_ns() + BEAT_NS;
                thread::sleep(Duration::from_nanos(BEAT_NS));
                let to_ns = now_ns();
                if to_ns >= due_ns + NOTABLE_NS {
                    lock(&all).push(Late { due_ns, to_ns });
                }
            }
        });
        Self(all)
    }

    /// The longest that a thread was kept waiting between these two moments.
    pub fn worst_between(&self, from_ns: u64, to_ns: u64) -> Duration {
        let all = lock(&self.0);
        let within =
            all.iter().map(|late| late.to_ns.min(to_ns).saturating_sub(late.due_ns.max(from_ns)));
        Duration::from_nanos(within.max().unwrap_or_default())
    }

    /// Begins anew: what was before is nobody's concern any more.
    pub fn forget(&self) {
        lock(&self.0).clear();
    }

    /// What to add to a bound of something that happened between these moments: a chain of processes and
    /// threads waits for its turn several times.
    pub fn allowance(&self, from_ns: u64, to_ns: u64) -> Duration {
        4 * self.worst_between(from_ns, to_ns)
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

fn lock(all: &Mutex<Vec<Late>>) -> MutexGuard<'_, Vec<Late>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
