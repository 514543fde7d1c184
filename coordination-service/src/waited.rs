//! For how long a request waits for others or for its own body, apart from the time for which it is worked on, which has a bound.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

tokio::task_local! {
    /// That of the request whose handler runs.
    static OF_REQUEST: Waited;
}

/// For how long one request has waited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waited(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// All waits that are over, in microseconds.
    time: AtomicU64,
    /// How many are not.
    waits: AtomicUsize,
}

/// A wait, until it is over or its client has gone.
struct Wait {
    begun: Instant,
    of: Option<Waited>,
}

impl Waited {
    /// Runs this handler, and counts what it [waits](waiting). `None`: it was worked on for longer than `most`, and is dropped, as if its
    /// client had gone.
    pub(crate) async fn count<F: Future>(&self, most: Duration, handler: F) -> Option<F::Output> {
        let begun = Instant::now();
        let mut handler = pin!(OF_REQUEST.scope(self.clone(), handler));
        let mut late = pin!(sleep(most));
        poll_fn(|context| {
            if let Poll::Ready(done) = handler.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // The handler is polled again when its wait is over: until then nothing runs out, and no timer wakes anybody.
            if self.0.waits.load(Ordering::Relaxed) > 0 {
                return Poll::Pending;
            }
            let end = begun + most + self.time();
            if late.deadline() < end {
                late.as_mut().reset(end);
            }
            late.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    /// All of it until now.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_micros(self.0.time.load(Ordering::Relaxed))
    }
}

/// Does this, in which the request waits for others, or for its body.
pub(crate) async fn waiting<F: Future>(wait: F) -> F::Output {
    let _wait = Wait::begin();
    wait.await
}

impl Wait {
    fn begin() -> Self {
        let of = OF_REQUEST.try_with(Waited::clone).ok();
        if let Some(Waited(all)) = &of {
            all.waits.fetch_add(1, Ordering::Relaxed);
        }
        Self { begun: Instant::now(), of }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(Waited(all)) = &self.of {
            let time = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            all.time.fetch_add(time, Ordering::Relaxed);
            all.waits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const WAIT: Duration = Duration::from_millis(20);
    /// Longer than a check takes.
    const LONG: Duration = Duration::from_secs(600);

    /// What a handler does besides is not counted, and what a client that has gone has waited is.
    #[tokio::test(start_paused = true)]
    async fn waits_are_told_from_work() {
        let (whole, broken_off) = (Waited::default(), Waited::default());
        whole.count(LONG, sleep(WAIT)).await;
        assert_eq!(whole.time(), Duration::ZERO);
        whole.count(LONG, waiting(sleep(WAIT))).await;
        assert!(whole.time() >= WAIT / 2, "{:?}", whole.time());
        let forever = broken_off.count(LONG, waiting(pending::<()>()));
        assert!(tokio::time::timeout(WAIT, forever).await.is_err());
        assert!(broken_off.time() >= WAIT / 2, "{:?}", broken_off.time());
        // And nobody is there to count for.
        waiting(async {}).await;
    }

    /// However long it waits, before and in between: only what is worked on runs out.
    #[tokio::test(start_paused = true)]
    async fn work_has_a_bound_and_waits_have_none() {
        let most = Duration::from_secs(1);
        let waits = async {
            waiting(sleep(2 * most)).await;
            // A timer for the bound is there when it waits again.
            sleep(WAIT).await;
            waiting(sleep(2 * most)).await;
        };
        let hangs = async {
            waiting(sleep(WAIT)).await;
            pending::<()>().await;
        };
        let (waited, hung) = (Waited::default(), Waited::default());
        let both = async { tokio::join!(waited.count(most, waits), hung.count(most, hangs)) };
        let both = tokio::time::timeout(60 * most, both).await;
        assert_eq!(both.expect("what hangs is ended"), (Some(()), None));
    }
}
