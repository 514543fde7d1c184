//! How long this process is kept waiting for a processor.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const BEAT: Duration = Duration::from_millis(2);

/// Measures it, from its start until it is dropped.
///
/// The contract's bounds are tight, and tests share two cores with compilers. What the machine withheld is
/// added to a bound; on a calm one that is a millisecond.
#[derive(Debug)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Begins to measure.
    pub fn start() -> Self {
        let worst = Arc::new(AtomicU64::new(0));
        let counted: Weak<_> = Arc::downgrade(&worst);
        thread::spawn(move || {
            while let Some(worst) = counted.upgrade() {
                let start = Instant::now();
                thread::sleep(BEAT);
                let late = start.elapsed().saturating_sub(BEAT);
                worst.fetch_max(nanos(late), Ordering::Relaxed);
            }
        });
        Self(worst)
    }

    /// The worst so far.
    pub fn worst(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// The worst so far; it begins anew.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
