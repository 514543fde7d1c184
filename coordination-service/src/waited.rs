//! For how long a request waits for others or for its own body, apart from the time for which it is worked on.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

tokio::task_local! {
    /// That of the request whose handler runs.
    static OF_REQUEST: Waited;
}

/// For how long one request has waited, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waited(Arc<AtomicU64>);

/// A wait, until it is over or its client has gone.
struct Wait {
    begun: Instant,
    of: Option<Waited>,
}

impl Waited {
    /// Runs this handler, and counts what it [waits](waiting).
    pub(crate) async fn count<F: Future>(&self, handler: F) -> F::Output {
        OF_REQUEST.scope(self.clone(), handler).await
    }

    /// All of it until now.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Does this, in which the request waits for others, or for its body.
pub(crate) async fn waiting<F: Future>(wait: F) -> F::Output {
    let of = OF_REQUEST.try_with(Waited::clone).ok();
    let _wait = Wait { begun: Instant::now(), of };
    wait.await
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(Waited(all)) = &self.of {
            let time = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            all.fetch_add(time, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(20);

    /// What a handler does besides is not counted, and what a client that has gone has waited is.
    #[tokio::test]
    async fn waits_are_told_from_work() {
        let (whole, broken_off) = (Waited::default(), Waited::default());
        whole.count(tokio::time::sleep(WAIT)).await;
        assert_eq!(whole.time(), Duration::ZERO);
        whole.count(waiting(tokio::time::sleep(WAIT))).await;
        assert!(whole.time() >= WAIT / 2, "{:?}", whole.time());
        let forever = broken_off.count(waiting(std::future::pending::<()>()));
        assert!(tokio::time::timeout(WAIT, forever).await.is_err());
        assert!(broken_off.time() >= WAIT / 2, "{:?}", broken_off.time());
        // And nobody is there to count for.
        waiting(async {}).await;
    }
}
