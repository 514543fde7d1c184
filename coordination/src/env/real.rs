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
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::Instant;

    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    static AHEAD: Mutex<Ahead> = Mutex::new(Ahead { last: None, sum: 0 });
    let awake = || u64::try_from(FIRST.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tries = 10;
    // If this thread was stopped between the two readings, they say nothing of one another.
    loop {
        let (before, all) = (awake(), system_nanos());
        tries -= 1;
        if awake() - before < NOISE / 2 || tries == 0 {
            return ahead.read(before, all);
        }
    }
}

#[cfg(unix)]
fn system_nanos() -> u64 {
    let now = clock_gettime(CLOCK);
    // Both parts are non-negative, and 2^64 ns are 584 years of uptime.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// By how much the clock that goes on in suspend is taken to be ahead of the other one, in nanoseconds.
#[cfg(any(target_vendor = "apple", test))]
#[derive(Default)]
struct Ahead {
    /// By how much it was ahead when it was last read.
    last: Option<u64>,
    /// What it was ahead at first, and all by which it has gone further ahead since.
    sum: u64,
}

/// Two readings are not made at the same moment. What they differ by less than this is no suspend.
#[cfg(any(target_vendor = "apple", test))]
const NOISE: u64 = 2_000_000;

#[cfg(any(target_vendor = "apple", test))]
impl Ahead {
    /// A clock that goes on in suspend and never goes back, made of one that goes on and may be set (`all`), and one that stands still
    /// and is never set (`awake`). If `all` is set ahead, so is this clock: then deadlines pass early, which is safe. If it is set
    /// back, this clock goes on, and a suspend after that counts as well.
    fn read(&mut self, awake: u64, all: u64) -> u64 {
        let now = all.saturating_sub(awake);
        match self.last {
            None => (self.last, self.sum) = (Some(now), now),
            Some(last) if now.abs_diff(last) >= NOISE => {
                self.sum = self.sum.saturating_add(now.saturating_sub(last));
                self.last = Some(now);
            }
            Some(_) => {}
        }
        awake.saturating_add(self.sum)
    }
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
    use super::Ahead;

    #[test]
    fn a_clock_of_two_goes_on_in_suspend_and_never_back() {
        let mut ahead = Ahead::default();
        // In milliseconds.
        let mut at =
            |awake: u64, all: u64| ahead.read(awake * 1_000_000, all * 1_000_000) / 1_000_000;
        assert_eq!([at(0, 100), at(10, 110)], [100, 110]);
        // Asleep for 50. A reading that is late by one is no suspend.
        assert_eq!([at(11, 161), at(12, 163), at(13, 163)], [161, 162, 163]);
        // The wall clock is set back by 60, and the moment of the boot after it: as if it had been asleep, which is early.
        assert_eq!([at(14, 104), at(15, 165)], [164, 225]);
        // It is set ahead by 60, and a reading in between sees that.
        assert_eq!([at(16, 226), at(17, 167)], [286, 287]);
        // Asleep for 50 once more.
        assert_eq!(at(18, 218), 338);
    }
}
