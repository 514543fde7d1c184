//! The world as it is: the machine's clocks, the thread's random numbers, tokio's tasks.

use std::future::Future;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(unix)]
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Unforked;

/// A file that is open, and is closed when this is dropped.
#[cfg(unix)]
pub(crate) use std::os::fd::OwnedFd as OwnedFile;
/// A file that is open, and is closed when this is dropped.
#[cfg(windows)]
pub(crate) use std::os::windows::io::OwnedHandle as OwnedFile;

/// Whether [`boot_nanos`] goes on while the machine is suspended (A4). FreeBSD and other systems have no clock that does.
pub(crate) const COUNTS_SUSPEND: bool =
    cfg!(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows));

/// Whether this process does without what only Linux has, as on another system. On Linux that is for our own tests alone: in builds
/// with `--cfg coordination_internals`, if the environment variable `COORDINATION_TEST_PLAIN` is set.
pub(crate) fn is_plain() -> bool {
    #[cfg(all(target_os = "linux", coordination_internals))]
    {
        use std::sync::LazyLock;

        static IS_PLAIN: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("COORDINATION_TEST_PLAIN").is_some());
        *IS_PLAIN
    }
    #[cfg(not(all(target_os = "linux", coordination_internals)))]
    !cfg!(target_os = "linux")
}

/// Linux' `CLOCK_MONOTONIC` stands still while the machine is suspended, `CLOCK_BOOTTIME` does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// That of macOS goes on while the machine sleeps. Those of other systems stand still; see [`COUNTS_SUSPEND`].
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The clock since boot, which goes on while the machine is suspended, where the system has such a clock.
#[cfg(unix)]
pub(crate) fn boot_nanos() -> u64 {
    let now = clock_gettime(CLOCK);
    // Both parts are non-negative, and 2^64 ns are 584 years of uptime.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// The time since this process first asked. On Windows an `Instant` is read from the performance counter, which goes on while the
/// machine is suspended.
#[cfg(windows)]
pub(crate) fn boot_nanos() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;

    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    // 2^64 ns are 584 years.
    u64::try_from(FIRST.elapsed().as_nanos()).unwrap_or(u64::MAX)
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
