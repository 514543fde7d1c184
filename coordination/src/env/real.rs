//! The world as it is: the machine's clocks, the thread's random numbers, tokio's tasks.

use std::future::Future;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Unforked;

/// The clock since boot, which goes on while the machine is suspended.
pub(crate) fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Both parts are non-negative, and 2^64 ns are 584 years of uptime.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// The wall clock in microseconds since 1970. A new queue's tokens start at it, and people are shown it. It never decides who holds
/// a lock.
pub(crate) fn unix_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// Random numbers that nobody can guess.
pub(crate) fn rng() -> rand::rngs::ThreadRng {
    rand::rng()
}

/// Starts a task on this runtime. A forked child that drops its copy of the runtime does not drop the task with it.
pub(crate) fn spawn<F>(runtime: &Handle, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    runtime.spawn(Unforked::new(Box::pin(task)))
}
