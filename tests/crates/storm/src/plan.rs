//! The objects that clients use in the storm, and the random choices of the tasks.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A lock, a semaphore or a work queue that all clients use.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// The number of permits of a semaphore; `None` for a lock or a work queue.
    pub(crate) permits: Option<u32>,
}

/// The objects for which the clients contend: one semaphore, and as many locks as `locks` says.
pub(crate) fn targets(locks: usize) -> Vec<Target> {
    let lock = |number| Target { name: format!("lock-{number}"), permits: None };
    let semaphore = Target { name: "semaphore".to_owned(), permits: Some(3) };
    (1..=locks).map(lock).chain([semaphore]).collect()
}

/// The work queues from which the clients claim items.
pub(crate) fn queues(count: usize) -> Vec<Target> {
    let queue = |number| Target { name: format!("queue-{number}"), permits: None };
    (1..=count).map(queue).collect()
}

/// When a caller gives up an acquire that was not granted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The acquire is called with this timeout. `None` waits for ever, and zero does not wait.
    Timeout(Option<Duration>),
    /// The future is dropped after this many polls.
    Polls(u32),
    /// The future is dropped after this time.
    Dropped(Duration),
}

/// How the holder ends its guard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Released,
    /// The release's future is dropped after this many polls.
    ReleaseDropped(u32),
    Dropped,
}

/// The random choices for one acquire and for the hold that follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) target: usize,
    pub(crate) shared: bool,
    pub(crate) patience: Patience,
    /// How often the holder yields to other tasks.
    pub(crate) yields: u32,
    /// How long the holder then sleeps before it ends the hold; mostly not at all.
    pub(crate) pause: Option<Duration>,
    pub(crate) ending: Ending,
}

/// The random choices of one task. A task with the same seed and numbers makes the same choices in each run.
pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64, client: u32, task: u32) -> Self {
        let own = (u64::from(client) << 32) | u64::from(task);
        Self(StdRng::seed_from_u64(seed ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(crate) fn round(&mut self, targets: &[Target]) -> Round {
        let Self(random) = self;
        let semaphore = targets.len() - 1;
        // A semaphore is chosen rarely, because its waiters read the whole queue. So it costs several times as much as
        // a lock.
        let target = match random.random_ratio(1, 50) {
            true => semaphore,
            false => random.random_range(0..semaphore),
        };
        Round {
            target,
            shared: target != semaphore && random.random_ratio(1, 8),
            patience: self.patience(),
            yields: self.0.random_range(0..3),
            pause: self.0.random_ratio(1, 20).then(|| self.milliseconds(2)),
            ending: match self.0.random_range(0..10) {
                0 => Ending::ReleaseDropped(self.0.random_range(1..3)),
                1..4 => Ending::Dropped,
                _ => Ending::Released,
            },
        }
    }

    /// A random number below `limit`, for the choices of a task that claims items.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    fn patience(&mut self) -> Patience {
        match self.0.random_range(0..100) {
            0..30 => Patience::Polls(self.0.random_range(1..8)),
            30..40 => Patience::Dropped(self.milliseconds(2)),
            40..42 => Patience::Timeout(Some(Duration::ZERO)),
            42..44 => Patience::Timeout(Some(self.milliseconds(5))),
            _ => Patience::Timeout(None),
        }
    }

    /// A random time below `limit` milliseconds.
    fn milliseconds(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.0.random_range(0..limit * 1_000))
    }
}
