//! How late a thread of this process is when it should wake: what the machine keeps it waiting for a processor.
//!
//! The contract's bounds are tight, and tests share two cores with compilers. What the machine withheld is
//! added to a bound; on a calm one that is a millisecond.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::log::now_ns;

const BEAT: Duration = Duration::from_millis(2);
/// What is less is nobody's concern.
const NOTABLE: Duration = Duration::from_millis(1);

/// A thread that wakes every 2 ms, as long as this lives.
#[derive(Debug)]
pub struct Pulse(Arc<Mutex<Vec<Late>>>);

#[derive(Clone, Copy, Debug)]
struct Late {
    from_ns: u64,
    to_ns: u64,
    by: Duration,
}

impl Pulse {
    /// Begins to measure.
    pub fn start() -> Self {
        let all = Arc::new(Mutex::new(Vec::new()));
        let kept: Weak<_> = Arc::downgrade(&all);
        thread::spawn(move || {
            while let Some(all) = kept.upgrade() {
                let from_ns = now_ns();
                thread::sleep(BEAT);
                let to_ns = now_ns();
                let by = Duration::from_nanos(to_ns - from_ns).saturating_sub(BEAT);
                if by >= NOTABLE {
                    lock(&all).push(Late { from_ns, to_ns, by });
                }
            }
        });
        Self(all)
    }

    /// The worst so far.
    pub fn worst(&self) -> Duration {
        self.worst_between(0, u64::MAX)
    }

    /// The worst that has to do with the time between these two moments.
    pub fn worst_between(&self, from_ns: u64, to_ns: u64) -> Duration {
        let all = lock(&self.0);
        let within = all.iter().filter(|late| late.from_ns <= to_ns && late.to_ns >= from_ns);
        within.map(|late| late.by).max().unwrap_or_default()
    }

    /// What to add to a bound of something that happened between these moments: a chain of processes and
    /// threads waits for its turn several times.
    pub fn allowance(&self, from_ns: u64, to_ns: u64) -> Duration {
        4 * self.worst_between(from_ns, to_ns)
    }
}

fn lock(all: &Mutex<Vec<Late>>) -> MutexGuard<'_, Vec<Late>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
