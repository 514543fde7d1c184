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
    cfg!(any(linux_kernel, target_os = "openbsd", target_vendor = "apple", windows));

/// Whether this process does without what only Linux has, as on another system. On Linux that is for our own tests alone: in builds
/// with `--cfg coordination_internals`, if the environment variable `COORDINATION_TEST_PLAIN` is set.
pub(crate) fn is_plain() -> bool {
    #[cfg(all(linux_kernel, coordination_internals))]
    {
        use std::sync::LazyLock;

        static IS_PLAIN: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("COORDINATION_TEST_PLAIN").is_some());
        *IS_PLAIN
    }
    #[cfg(not(all(linux_kernel, coordination_internals)))]
    !cfg!(linux_kernel)
}

/// `CLOCK_MONOTONIC` of Linux and OpenBSD stands still while the machine is suspended, `CLOCK_BOOTTIME` does not.
#[cfg(any(linux_kernel, target_os = "openbsd"))]
const CLOCK: ClockId = ClockId::Boottime;
/// That of macOS goes on while the machine sleeps. Those of other systems stand still; see [`COUNTS_SUSPEND`].
#[cfg(all(unix, not(any(linux_kernel, target_os = "openbsd"))))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The clock since boot, which goes on while the machine is suspended, where the system has such a clock.
#[cfg(all(unix, not(target_vendor = "apple")))]
pub(crate) fn boot_nanos() -> u64 {
    system_nanos()
}

/// The clock since boot, which goes on while the machine is suspended. macOS makes its `CLOCK_MONOTONIC` out of the wall clock and the
/// moment of the boot, and sets one after the other if somebody sets the wall clock. So only what that clock is ahead of a clock that
/// is not set, and stands still in suspend, is taken from it.
#[cfg(target_vendor = "apple")]
pub(crate) fn boot_nanos() -> u64 {
    use std::sync::LazyLock;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    static AHEAD: AtomicU64 = AtomicU64::new(0);
    let awake = u64::try_from(FIRST.elapsed().as_nanos()).unwrap_or(u64::MAX);
    never_back(awake, system_nanos(), &AHEAD)
}

#[cfg(unix)]
fn system_nanos() -> u64 {
    let now = clock_gettime(CLOCK);
    // Both parts are non-negative, and 2^64 ns are 584 years of uptime.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// A clock that goes on in suspend, made of one that does and may be set (`all`), and one that does not and is never set (`awake`).
/// `ahead`: by how much the first was seen ahead of the second, at most. If `all` is set ahead for a moment, this clock stays ahead:
/// then deadlines pass early, which is safe. It never goes back.
#[cfg(any(target_vendor = "apple", test))]
fn never_back(awake: u64, all: u64, ahead: &std::sync::atomic::AtomicU64) -> u64 {
    let now = all.saturating_sub(awake);
    let before = ahead.fetch_max(now, std::sync::atomic::Ordering::Relaxed);
    awake.saturating_add(before.max(now))
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::never_back;

    #[test]
    fn a_clock_of_two_goes_on_in_suspend_and_never_back() {
        let ahead = AtomicU64::new(0);
        let at = |awake, all| never_back(awake, all, &ahead);
        assert_eq!([at(0, 100), at(10, 110)], [100, 110]);
        // Asleep for 50.
        assert_eq!([at(11, 161), at(12, 162)], [161, 162]);
        // The wall clock is set back by 60, and the moment of the boot after it.
        assert_eq!([at(13, 103), at(14, 164)], [163, 164]);
        // It is set ahead by 60: a reading in between keeps this clock ahead.
        assert_eq!([at(15, 225), at(16, 166)], [225, 226]);
    }
}
