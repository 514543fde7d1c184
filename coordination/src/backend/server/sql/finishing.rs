//! Statements that have a moment more to finish when nobody wants their answers any more.
//!
//! A statement that is dropped before its answer has come costs its connection (C3). For a call that changes something this has to be
//! so: it might be carried out after a later one. But whoever watches or waits may give up at any moment, also in the middle of a
//! read, and a program may do so again and again. Each time the connection would have to be made anew, with all subscriptions. So a
//! statement that does no harm however late it is carried out, such as a read or a LISTEN, is sent by a task of its own. If its caller
//! gives up, the task waits a little for the answer and throws it away.
//!
//! It does not wait long: on a connection that has fallen silent, such statements would otherwise have all slots for calls, and those who
//! want an answer would not even send theirs. Giving up the statement then gives up the connection, and the next call makes another one.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind, Result};
use crate::panics::caught;

/// How long, at most, a statement that nobody wants has for its answer.
const LONGEST_UNWANTED: Duration = Duration::from_secs(1);

/// Whether the statement of a task is on its way.
#[derive(Clone, Default)]
pub(crate) struct Sending(Arc<AtomicBool>);

impl Sending {
    /// Called just before the statement is sent. From now on its answer is awaited although its caller gives up.
    pub(crate) fn begins(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does `work`, which sends a statement, in a task of its own.
///
/// If the caller gives up before the statement is sent, the task ends at once: so there are never more statements that nobody wants
/// than may be in flight at the same time. If the caller gives up later, the task goes on until the answer has come, but for no longer
/// than [`unwanted`], and until `patience` has passed from the beginning. After that the statement is dropped, as is that of a caller
/// who has waited for so long.
pub(crate) async fn let_finish<T, F>(
    operation: &'static str,
    patience: Duration,
    work: impl FnOnce(Sending) -> F,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let sending = Sending::default();
    let work = work(sending.clone());
    let until = Instant::now() + patience;
    let (mut answer, answered) = oneshot::channel();
    tokio::spawn(async move {
        let mut work = pin!(caught(operation, work));
        tokio::select! {
            biased;
            done = &mut work => drop(answer.send(done.flatten())),
            () = answer.closed() => {
                if sending.has_begun() {
                    let until = until.min(Instant::now() + unwanted(patience));
                    // Whatever the outcome is, nobody wants it.
                    drop(timeout_at(until, work).await);
                }
            }
        }
    });
    // If the task has ended without an outcome, the runtime is shutting down.
    let gone = |_| Err(Error::new(ErrorKind::Unavailable, operation, "the runtime has ended"));
    answered.await.unwrap_or_else(gone)
}

/// How long a statement that nobody wants has for its answer. It is half as long as a call waits for a slot, so that those who wait get
/// the slots of all that nobody wants on a silent connection.
fn unwanted(patience: Duration) -> Duration {
    (patience / 4).min(LONGEST_UNWANTED)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// Begins the work, and gives up after half of the time that it has.
    async fn give_up<F>(work: impl FnOnce(Sending) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let given_up = timeout(PATIENCE / 2, let_finish("read", PATIENCE, work)).await;
        assert!(given_up.is_err(), "there is no answer");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_is_left_to_finish() {
        let (answer, answered) = oneshot::channel::<u32>();
        let (has_finished, finished) = oneshot::channel();
        give_up(|sending| async move {
            sending.begins();
            let answer = answered.await.expect("it is answered");
            has_finished.send(answer).expect("that is waited for");
            Ok(())
        })
        .await;
        answer.send(7).expect("it waits for the answer");
        assert_eq!(finished.await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_sent_ends_with_its_caller() {
        let (kept, has_ended) = oneshot::channel::<()>();
        let begun = Instant::now();
        give_up(|_| async move {
            let _kept = kept;
            pending().await
        })
        .await;
        assert!(has_ended.await.is_err());
        assert!(begun.elapsed() < PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_answer_ends_in_time() {
        let (kept, has_ended) = oneshot::channel::<()>();
        let begun = Instant::now();
        give_up(|sending| async move {
            let _kept = kept;
            sending.begins();
            pending().await
        })
        .await;
        assert!(begun.elapsed() < PATIENCE / 2 + unwanted(PATIENCE));
        assert!(has_ended.await.is_err());
        let took = begun.elapsed();
        assert!(took >= PATIENCE / 2 + unwanted(PATIENCE) && took < PATIENCE, "{took:?}");
    }

    /// As on a connection that is silent: whoever gives up has taken all slots, and the next call waits for one.
    #[tokio::test(start_paused = true)]
    async fn what_has_no_answer_leaves_its_slot_to_others_in_time() {
        for patience in [PATIENCE, 10 * PATIENCE] {
            let slots = Arc::new(Semaphore::new(2));
            for _ in 0..2 {
                let all = Arc::clone(&slots);
                let read = |sending: Sending| async move {
                    let _slot = all.acquire().await.expect("it is never closed");
                    sending.begins();
                    pending::<Result<()>>().await
                };
                let given_up = timeout(patience / 100, let_finish("read", patience, read)).await;
                assert!(given_up.is_err(), "there is no answer");
            }
            assert_eq!(slots.available_permits(), 0);
            // As long as a call waits for a slot.
            let slot = timeout(patience / 2, slots.acquire()).await;
            assert!(slot.is_ok(), "with {patience:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_the_callers_error() {
        let done: Result<()> = let_finish("read", PATIENCE, |_| async { panic!("a bug") }).await;
        let error = done.expect_err("it panics");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, "read"));
    }
}
