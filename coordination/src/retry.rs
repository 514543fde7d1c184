//! Back-off: how long to wait before the next try.

use std::time::Duration;

use rand::RngExt;

use crate::env;

/// Decorrelated jitter: each delay is drawn from `initial ..= 3 × the one before`, up to `max`.
///
/// The spread keeps a thousand clients that lost the same server from coming back in step. From
/// "Exponential Backoff And Jitter", Marc Brooker, AWS architecture blog, 2015. The iterator never
/// ends: callers stop by a deadline, not by a count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecorrelatedJitter {
    initial: Duration,
    max: Duration,
    previous: Duration,
}

impl DecorrelatedJitter {
    /// Delays from `initial` on, never longer than `max`.
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        let initial = initial.min(max);
        Self { initial, max, previous: initial }
    }

    /// The next delay.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let upper = self.previous.saturating_mul(3).min(self.max);
        self.previous = if upper > self.initial {
            env::rng().random_range(self.initial..=upper)
        } else {
            upper
        };
        self.previous
    }
}

impl Iterator for DecorrelatedJitter {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_delay())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_within_bounds_and_spread() {
        let (initial, max) = (Duration::from_millis(100), Duration::from_secs(60));
        let delays: Vec<_> = DecorrelatedJitter::new(initial, max).take(1_000).collect();
        assert!(delays.iter().all(|delay| (initial..=max).contains(delay)));
        assert!(delays[0] <= initial * 3);
        assert!(delays.iter().any(|delay| *delay > Duration::from_secs(20)));
    }

    #[test]
    fn a_maximum_below_the_initial_delay_wins() {
        let mut delays = DecorrelatedJitter::new(Duration::from_secs(1), Duration::from_millis(10));
        assert_eq!(delays.next_delay(), Duration::from_millis(10));
    }
}
