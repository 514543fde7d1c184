//! What runs under grants, beside the loss of any of them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::loss::LossWatch;
use crate::error::{Effect, LossReason, Result};

pin_project! {
    /// Runs a future until it is done, or until one of the grants is lost.
    ///
    /// No `async fn`, here and wherever a future of the user is passed on: each would keep copies of it, and a future that
    /// is protected on every level of a program would be several times as large with each.
    #[project = Stage]
    pub(in crate::recipe) enum Protected<F> {
        Runs {
            #[pin]
            future: F,
            began: bool,
            loss: Loss,
        },
        Ended,
    }
}

/// Resolves with the error of the first loss, for a body that stands there.
type Loss = Pin<Box<dyn Future<Output = (LossWatch, LossReason)> + Send>>;

impl<F: Future> Protected<F> {
    pub(in crate::recipe) fn new(future: F, watches: Vec<LossWatch>) -> Self {
        Self::Runs { future, began: false, loss: Box::pin(first_lost(watches)) }
    }
}

impl<F: Future> Future for Protected<F> {
    type Output = Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Stage::Runs { future, began, loss } = self.as_mut().project() else {
            return Poll::Pending;
        };
        let ended = match loss.as_mut().poll(context) {
            Poll::Ready((lost, reason)) => Err(lost.error("protect", reason, stood(*began))),
            Poll::Pending => {
                *began = true;
                Ok(ready!(future.poll(context)))
            }
        };
        // The caller goes on when the future has been dropped.
        self.set(Self::Ended);
        Poll::Ready(ended)
    }
}

fn stood(began: bool) -> Effect {
    if began { Effect::Unknown } else { Effect::None }
}

/// Waits until one of them is lost, and answers which and why; for ever if there are none.
pub(crate) async fn first_lost(watches: Vec<LossWatch>) -> (LossWatch, LossReason) {
    let mut losses: Vec<_> = watches.into_iter().map(|watch| Box::pin(watch.into_loss())).collect();
    poll_fn(|context| {
        let mut polled = losses.iter_mut().map(|loss| loss.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}
