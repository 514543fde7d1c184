//! Runs a future under grants, until it is done or one of the grants is lost.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::loss::LossWatch;
use crate::error::{Effect, LossReason, Result};

pin_project! {
    /// Runs a future until it is done, or until one of the grants is lost.
    ///
    /// Not an `async fn`, here and wherever a user's future is passed on: each `async fn` would keep copies of the future, so
    /// that a future that is protected on every level of a program would grow several times with each level.
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

/// Resolves with the first grant that is lost, and the reason.
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
        // The future is dropped before the caller goes on.
        self.set(Self::Ended);
        Poll::Ready(ended)
    }
}

fn stood(began: bool) -> Effect {
    if began { Effect::Unknown } else { Effect::None }
}

/// Waits until one of the grants is lost, and returns which one and why. Waits for ever if there are none.
pub(crate) async fn first_lost(watches: Vec<LossWatch>) -> (LossWatch, LossReason) {
    let mut losses: Vec<_> = watches.into_iter().map(|watch| Box::pin(watch.into_loss())).collect();
    poll_fn(|context| {
        let mut polled = losses.iter_mut().map(|loss| loss.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}
