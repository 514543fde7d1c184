//! Rate limiters that are in use. One is kept for a while, as it knows how much time has passed since others took permits.

use std::time::Duration;

use coordination::{Coordinator, RateLimiter};

use crate::kept::Kept;
use crate::problem::{Code, Problem};

/// The most limiters that are kept.
const MOST: usize = 10_000;
/// How long one is kept after its last use, beside its longest window.
const KEPT: Duration = Duration::from_secs(600);

/// At most so many permits in each window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
}

/// What a limiter is asked for with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) limits: Vec<Limit>,
    pub(crate) margin: Duration,
    pub(crate) is_paced: bool,
}

/// By name and settings.
pub(crate) struct Rates(Kept<(String, Rate), RateLimiter>);

impl Default for Rates {
    fn default() -> Self {
        Self(Kept::new(MOST))
    }
}

impl Rate {
    fn limiter(&self, coordinator: &Coordinator, name: &str) -> Result<RateLimiter, Problem> {
        let none = || Problem::new(Code::Invalid, "a rate has one limit or more");
        let (first, more) = self.limits.split_first().ok_or_else(none)?;
        let limiter = coordinator.rate_limiter(name, first.permits, first.per)?;
        let add = |limiter: RateLimiter, limit: &Limit| limiter.and(limit.permits, limit.per);
        let limiter = more.iter().try_fold(limiter, add)?.margin(self.margin)?;
        Ok(if self.is_paced { limiter.paced() } else { limiter })
    }

    /// Whether a limiter of this rate, unused for so long, knows nothing any more that a new one would not learn.
    fn is_over(&self, unused: Duration) -> bool {
        let longest = self.limits.iter().map(|limit| limit.per).max().unwrap_or_default();
        unused > longest + self.margin + KEPT
    }
}

impl Rates {
    /// The limiter of this name with these settings.
    pub(crate) fn limiter(
        &self,
        coordinator: &Coordinator,
        name: &str,
        rate: Rate,
    ) -> Result<RateLimiter, Problem> {
        self.0.get((name.to_owned(), rate), |(name, rate)| rate.limiter(coordinator, name))
    }

    /// Forgets those that nobody has used for long.
    pub(crate) fn tidy(&self) {
        self.0.forget(|(_, rate), unused| rate.is_over(unused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limiter_is_kept_beyond_its_longest_window() {
        let limit = |seconds| Limit { permits: 1, per: Duration::from_secs(seconds) };
        let rate =
            Rate { limits: vec![limit(1), limit(60)], margin: Duration::ZERO, is_paced: false };
        assert!(!rate.is_over(Duration::from_secs(660)));
        assert!(rate.is_over(Duration::from_secs(661)));
    }
}
