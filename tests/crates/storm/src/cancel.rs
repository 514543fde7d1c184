//! Drops futures before they complete.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Polls a future at most this many times. `None` if it has not completed by then and was dropped.
///
/// The future is polled again even if nothing has woken it, so that it can be dropped at any of its awaits.
pub(crate) async fn within_polls<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_polls_as_often_as_it_says() {
        for ready_at in 1..5 {
            let mut polled = 0;
            let future = poll_fn(|_| {
                polled += 1;
                if polled == ready_at { Poll::Ready(()) } else { Poll::Pending }
            });
            let outcome = within_polls(3, future).await;
            assert_eq!(outcome.is_some(), ready_at <= 3);
            assert_eq!(polled, ready_at.min(3));
        }
    }
}
