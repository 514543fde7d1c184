//! Commands about rate limiters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

use coordination::RateLimiter;
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};

use crate::client::{Arguments, Client, failed};

fn limiter(client: &Client, arguments: Arguments<'_>) -> Result<RateLimiter, Value> {
    let permits = arguments.count("permits")?.try_into().unwrap_or(u32::MAX);
    let per = arguments.millis("per_ms").unwrap_or_default();
    let coordinator = client.coordinator()?;
    coordinator.rate_limiter(arguments.text("limiter")?, permits, per).map_err(failed)
}

/// For how long the machine has kept this process from running, in microseconds: the longest time, and the sum of all.
#[derive(Default)]
struct Withheld {
    most: AtomicU64,
    sum: AtomicU64,
}

impl Withheld {
    async fn measure(self: Arc<Self>) {
        const BEAT: Duration = Duration::from_millis(2);
        loop {
            let start = Instant::now();
            tokio::time::sleep(BEAT).await;
            // Even on an idle machine a timer is up to a millisecond late. So the lateness is counted only as far as it
            // exceeds one beat: one of the two beats subtracted here is the sleep itself, the other is this allowance.
            let late = start.elapsed().saturating_sub(2 * BEAT).as_micros() as u64;
            self.most.fetch_max(late, Ordering::Relaxed);
            self.sum.fetch_add(late, Ordering::Relaxed);
        }
    }
}

/// Takes permits one after the other: `n` of them, or as many as it gets within `ms`.
pub(crate) async fn rate(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let limiter = limiter(client, arguments)?;
    let (begun, mut permits) = (Instant::now(), Vec::new());
    let enough = |taken: usize| match arguments.millis("ms") {
        Some(length) => begun.elapsed() >= length,
        None => taken >= arguments.count("n").unwrap_or(1),
    };
    let withheld = Arc::new(Withheld::default());
    let measuring = tokio::spawn(Arc::clone(&withheld).measure());
    while !enough(permits.len()) {
        let permit = limiter.acquire(1, None::<Duration>).await.map_err(failed)?;
        permits.push(json!([permit.slot().as_micros() as u64, now_ns() / 1_000]));
    }
    measuring.abort();
    let [late, withheld] = [&withheld.most, &withheld.sum].map(|time| time.load(Ordering::Relaxed));
    Ok(json!({ "permits": permits, "late": late, "withheld": withheld }))
}
