//! Rate limiters that are in use: one is kept for a while, as it knows how much time has passed since others took permits.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use coordination::{Coordinator, RateLimiter};

use crate::problem::{Code, Problem};
use crate::service::Shared;

/// The most limiters that are kept.
const MOST: usize = 10_000;
/// How long one is kept after its last use, beside its longest window.
const KEPT: Duration = Duration::from_secs(600);

/// How often those that nobody uses are forgotten.
const TIDIED: Duration = Duration::from_secs(60);

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
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<(String, Rate), Kept>>);

struct Kept {
    limiter: RateLimiter,
    used: Instant,
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

    fn is_kept(&self, unused: Duration) -> bool {
        let longest = self.limits.iter().map(|limit| limit.per).max().unwrap_or_default();
        unused <= longest + self.margin + KEPT
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
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let key = (name.to_owned(), rate);
        if let Some(known) = kept.get_mut(&key) {
            known.used = now;
            return Ok(known.limiter.clone());
        }
        if kept.len() >= MOST {
            forget(&mut kept, now);
        }
        let limiter = key.1.limiter(coordinator, name)?;
        kept.insert(key, Kept { limiter: limiter.clone(), used: now });
        Ok(limiter)
    }

    /// Forgets those that nobody has used for long.
    fn tidy(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|(_, rate), known| rate.is_kept(now.duration_since(known.used)));
    }
}

/// Forgets limiters that nobody uses any more, for as long as the service runs: each follows its changes at the store.
pub(crate) async fn tidy_up(service: Shared) {
    loop {
        tokio::time::sleep(TIDIED).await;
        service.rates.tidy();
    }
}

/// Forgets those that nobody has used for long; if there are none, a tenth of all, those that were used least lately.
fn forget(kept: &mut HashMap<(String, Rate), Kept>, now: Instant) {
    kept.retain(|(_, rate), known| rate.is_kept(now.duration_since(known.used)));
    if kept.len() >= MOST {
        let mut used: Vec<_> = kept.values().map(|known| known.used).collect();
        let (_, &mut limit, _) = used.select_nth_unstable(MOST / 10);
        kept.retain(|_, known| known.used > limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(permits: u32) -> Rate {
        let limits = vec![Limit { permits, per: Duration::from_secs(1) }];
        Rate { limits, margin: Duration::ZERO, is_paced: false }
    }

    #[tokio::test]
    async fn as_many_are_kept_as_may_be() {
        let coordinator = Coordinator::connect("memory://").await.expect("it is in memory");
        let rates = Rates::default();
        let limiter = |name: &str| {
            rates.limiter(&coordinator, name, rate(1)).expect("good").name().to_owned()
        };
        for number in 0..MOST + 10 {
            assert_eq!(limiter(&number.to_string()), number.to_string());
        }
        let count = || rates.0.lock().expect("no panic").len();
        assert!(count() <= MOST && count() >= MOST / 2, "{}", count());
        let is_there = |name: &str| {
            rates.0.lock().expect("no panic").contains_key(&(name.to_owned(), rate(1)))
        };
        assert!(is_there(&(MOST + 9).to_string()) && !is_there("0"));
        rates.tidy();
        assert!(is_there(&(MOST + 9).to_string()), "it was used a moment ago");
        assert!(!rate(1).is_kept(Duration::from_secs(602)) && rate(1).is_kept(KEPT));
        coordinator.stop().await.expect("stopped");
    }
}
