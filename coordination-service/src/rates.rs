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
    /// The limiter of this name with these settings. It is [kept](Self::keep) only when the store has taken the settings.
    pub(crate) fn limiter(
        &self,
        coordinator: &Coordinator,
        name: &str,
        rate: &Rate,
    ) -> Result<RateLimiter, Problem> {
        let make = || rate.limiter(coordinator, name);
        self.0.get(&(name.to_owned(), rate.clone()), make)
    }

    /// Keeps it for this principal.
    pub(crate) fn keep(&self, owner: &str, name: &str, rate: Rate, limiter: &RateLimiter) {
        self.0.keep(owner, (name.to_owned(), rate), limiter);
    }

    /// Forgets those that nobody has used for long.
    pub(crate) fn tidy(&self) {
        self.0.forget(|(_, rate), unused| rate.is_over(unused));
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;

    /// Whoever asks with settings of its own, which the store refuses, has nothing kept.
    #[tokio::test]
    async fn only_what_the_store_has_taken_is_kept() {
        let (service, _other) = instance(Cover::Any).await;
        let body = |permits: u32| {
            let limits = format!("{{\"limits\":[{{\"permits\":{permits},\"per_ms\":60000}}]}}");
            let request = Request::post("/v1/rates/x").header("host", "localhost");
            request.body(Body::from(limits)).expect("a request")
        };
        let routes = TowerToHyperService::new(crate::v1::routes(&service));
        let mut statuses = Vec::new();
        for permits in [1, 1, 2, 3] {
            let answer = routes.call(body(permits)).await.expect("an answer");
            statuses.push(answer.status().as_u16());
        }
        assert_eq!(statuses, [200, 429, 409, 409]);
        assert_eq!(service.rates.0.sum(|_| 1), 1);
    }

    #[test]
    fn a_limiter_is_kept_beyond_its_longest_window() {
        let limit = |seconds| Limit { permits: 1, per: Duration::from_secs(seconds) };
        let rate =
            Rate { limits: vec![limit(1), limit(60)], margin: Duration::ZERO, is_paced: false };
        assert!(!rate.is_over(Duration::from_secs(660)));
        assert!(rate.is_over(Duration::from_secs(661)));
    }
}
