//! The clock by which leases are measured.

use std::time::Duration;

use crate::env;

/// A moment on this machine's clock since boot, which goes on while the machine is suspended.
///
/// FreeBSD has no clock that goes on in suspend. There [`Characteristics::early_expiry`](crate::Characteristics::early_expiry) says
/// so for each store with a lease.
///
/// [`std::time::Instant`] stops during suspend on Linux
/// ([rust-lang/rust#87906](https://github.com/rust-lang/rust/issues/87906)): a laptop closed for an
/// hour would believe a lock that the store gave away long ago. So every deadline of this library is
/// a `BootInstant`. It means nothing on another machine.
///
/// # Examples
///
/// ```
/// use coordination::BootInstant;
///
/// let start = BootInstant::now();
/// assert!(BootInstant::now() >= start);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than every moment this clock will show.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// The present moment.
    pub fn now() -> Self {
        Self(env::boot_nanos())
    }

    /// The time from now until this moment; zero once it has passed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::BootInstant;
    ///
    /// let deadline = BootInstant::now().saturating_add(Duration::from_secs(60));
    /// let left = deadline.remaining();
    /// assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60));
    /// assert_eq!(BootInstant::now().remaining(), Duration::ZERO, "it has passed");
    /// ```
    pub fn remaining(self) -> Duration {
        self.saturating_duration_since(Self::now())
    }

    /// The time from `earlier` to this moment; zero when `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment moved by `duration`, or the latest moment that a `BootInstant` can have.
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Sleeps until `moment`, also if the machine is suspended before that moment.
///
/// tokio's timer stops during suspend, so after a resume this may be late by what was left to
/// sleep. Whoever decides by a deadline compares the clock itself; this only wakes it up.
pub(crate) async fn sleep_until(moment: BootInstant) {
    if moment == BootInstant::NEVER {
        return std::future::pending().await;
    }
    loop {
        let left = moment.remaining();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// The number after `last`, by a clock that may have been set back: larger, whatever the clock says.
#[cfg(any(feature = "_local", test))]
pub(crate) fn number_after(last: u64, now_us: u64) -> u64 {
    if crate::canary::sings(crate::canary::Canary::PlainCounterToken) {
        return last.saturating_add(1);
    }
    last.saturating_add(1).max(now_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_though_the_clock_is_set_back() {
        let mut last = 0;
        // Microseconds: a clock that runs, jumps ahead, is set back by a year, and stands still.
        for now_us in [1_000, 1_001, 1_001, 31_536_000_000_000, 2_000, 2_001, 2_001, 0] {
            let number = number_after(last, now_us);
            assert!(number > last && number >= now_us, "{last} → {number} at {now_us}");
            last = number;
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let now = BootInstant::now();
        assert_eq!(now.saturating_add(Duration::MAX), BootInstant::NEVER);
        assert_eq!(now.saturating_duration_since(BootInstant::NEVER), Duration::ZERO);
        assert!(now.saturating_add(Duration::from_secs(60)).remaining() > Duration::from_secs(50));
    }
}
