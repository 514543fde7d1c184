//! Work that is computed on the thread that serves all, one step of one client after the other: it takes half of the thread's time at most.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

/// So much may be computed ahead: timers are no finer than a millisecond.
const AHEAD: Duration = Duration::from_millis(5);
/// A step that has lasted longer was stopped, and not computed.
const LONGEST: Duration = Duration::from_millis(100);
/// So much work that can wait wants a turn at a time. With one alone, whoever floods us with handshakes would put off for hours what is
/// behind thousands of others, such as its own end.
const LATER: usize = 32;

/// Who computes next, in the order in which they want to.
#[derive(Debug)]
pub(crate) struct Turns {
    /// When what was computed, and as much time again for others, is over.
    over: Mutex<Instant>,
    /// Whoever has work that can wait has one of these while it wants a turn.
    later: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self { over: Mutex::new(Instant::now()), later: Semaphore::new(LATER) }
    }
}

impl Turns {
    /// Does this work, each of its steps in turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the work.
    pub(crate) async fn take<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let mut over = self.over.lock().await;
            sleep_until(over.checked_sub(AHEAD).unwrap_or(*over)).await;
            let begun = Instant::now();
            let step = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            *over = begun.max(*over) + 2 * begun.elapsed().min(LONGEST);
            drop(over);
            match step {
                Poll::Ready(done) => return done,
                Poll::Pending => woken().await,
            }
        }
    }

    /// The same for work that can wait: of all that is done so, a few at a time want a turn, so that thousands hold up nobody else.
    ///
    /// # Cancel safety
    ///
    /// As for [`take`](Self::take).
    pub(crate) async fn take_later<T>(&self, work: impl Future<Output = T>) -> T {
        let _one = self.later.acquire().await;
        self.take(work).await
    }
}

/// Waits until the task is woken, by whatever it has asked to wake it.
async fn woken() {
    let mut is_waiting = false;
    poll_fn(|_| match mem::replace(&mut is_waiting, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// However many want to compute, others have the thread half of the time.
    #[tokio::test]
    async fn what_is_computed_leaves_half_of_the_time() {
        let (turns, begun) = (Arc::new(Turns::default()), Instant::now());
        let clients: Vec<_> = (0..10)
            .map(|_| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move {
                    let step = async {
                        std::thread::sleep(STEP);
                        tokio::task::yield_now().await;
                        std::thread::sleep(STEP);
                    };
                    turns.take(step).await;
                })
            })
            .collect();
        for client in clients {
            client.await.expect("it does not panic");
        }
        // The last one ends when it has computed; what it leaves to others comes afterwards.
        assert!(begun.elapsed() >= 38 * STEP - AHEAD, "{:?}", begun.elapsed());
    }

    /// Who waits for its client keeps nobody else from computing.
    #[tokio::test]
    async fn who_waits_has_no_turn() {
        let turns = Arc::new(Turns::default());
        let silent = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move { turns.take(std::future::pending::<()>()).await }
        });
        tokio::time::sleep(STEP).await;
        let other = tokio::time::timeout(Duration::from_secs(9), turns.take(async { 1 })).await;
        assert_eq!(other.ok(), Some(1));
        silent.abort();
    }

    /// Whoever has work that can wait is, however many they are, one of a few who want to compute.
    #[tokio::test]
    async fn work_that_can_wait_holds_up_nobody() {
        let (turns, begun) = (Arc::new(Turns::default()), Arc::new(AtomicUsize::new(0)));
        let later: Vec<_> = (0..200)
            .map(|_| {
                let (turns, begun) = (Arc::clone(&turns), Arc::clone(&begun));
                tokio::spawn(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    turns.take_later(async { std::thread::sleep(STEP / 5) }).await;
                })
            })
            .collect();
        // By then all of them want to.
        while begun.load(Ordering::SeqCst) < later.len() {
            tokio::task::yield_now().await;
        }
        turns.take(async {}).await;
        let before = later.iter().filter(|task| task.is_finished()).count();
        assert!(before < 150, "{before} came first");
        later.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// A program that was stopped for long has not computed, and owes nobody that time.
    #[tokio::test]
    async fn a_step_that_was_stopped_shuts_nobody_out() {
        let turns = Turns::default();
        turns.take(async { std::thread::sleep(5 * LONGEST) }).await;
        // Not how long the next one takes: the machine may stand still meanwhile.
        let (over, now) = (*turns.over.lock().await, Instant::now());
        assert!(over <= now, "others are shut out for {:?}", over.saturating_duration_since(now));
        turns.take(async {}).await;
    }
}
