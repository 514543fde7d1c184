//! The caller's side of a turn: the protocol runs in the session's task, and he only listens.
//!
//! So his future may be dropped at any await, and what it would have got is given up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::place::Place;
use super::turn::{Patience, Request, Started, take};
use crate::canary::{Canary, sings};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::session::Session;

/// How long a caller whose time is over is kept for clearing up; he may be late by twice that.
const CLEARING: Duration = Duration::from_millis(50);

/// Takes the turn in `queue`; `None` only for [`Patience::Never`].
///
/// # Cancel safety
///
/// Dropping the future at any point leaves nothing behind.
pub(crate) async fn acquire(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
    patience: Patience,
) -> Result<Option<Box<Place>>> {
    session.check_process("acquire")?;
    let started = match start_now(session, queue, request) {
        Some(Ok(Started { mut place, position })) if position.blocker.is_none() => {
            place.grant()?;
            return Ok(Some(place));
        }
        Some(Ok(_)) if patience == Patience::Never => return Ok(None),
        Some(Ok(started)) => Some(started),
        Some(Err(error)) => return Err(error),
        None => None,
    };
    let (answer, answered) = oneshot::channel();
    let task = wait(Arc::clone(session), queue.clone(), request.clone(), patience, started, answer);
    drop(session.spawn(task));
    let outcome =
        answered.await.unwrap_or_else(|_| Err(Error::lost("acquire", LossReason::Closed)));
    if let Ok(Some(place)) = &outcome {
        place.deliver();
    }
    outcome
}

/// Enters at once, on stores that need no waiting for it; not where a judge has to be asked.
fn start_now(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
) -> Option<Result<Started>> {
    if request.judge.is_some() {
        return None;
    }
    let place = Box::new(Place::new(session, session.lease_now()?, queue, &request.contents));
    match session.backend.enter_now(place.entry()) {
        Some(Ok(position)) => Some(Ok(Started::new(place, position))),
        Some(Err(error)) => match error.loss_reason() {
            // Nothing was granted, so all that is lost is the session: wait for the next one.
            Some(reason) => {
                place.lease().lose(reason);
                None
            }
            None => Some(Err(error.on_backend(session.backend.scheme()))),
        },
        None => {
            place.forget();
            None
        }
    }
}

/// Waits for the turn on the caller's behalf, answers, and clears up if the caller has gone.
async fn wait(
    session: Arc<Session>,
    queue: QueueKey,
    request: Request,
    patience: Patience,
    started: Option<Started>,
    mut answer: oneshot::Sender<Result<Option<Box<Place>>>>,
) {
    let (cancel, cancelled) = watch::channel(());
    let is_behind = AtomicBool::new(false);
    let turn = take(&session, &queue, &request, patience, started, &is_behind, cancelled);
    tokio::pin!(turn);
    let out_of_time = async {
        match patience {
            Patience::Forever => std::future::pending().await,
            Patience::For(limit) if sings(Canary::TimeoutRestarts) => {
                let mut views = session.observe(&queue);
                while let Ok(Ok(_)) = tokio::time::timeout(limit, views.next()).await {}
            }
            Patience::For(limit) => tokio::time::sleep(limit).await,
            Patience::Never => {
                tokio::time::sleep(session.attempt_timeout(Some(session.settings.ttl))).await
            }
        }
    };
    let is_late = tokio::select! {
        biased;
        outcome = &mut turn => return drop(answer.send(outcome)),
        () = answer.closed() => false,
        () = out_of_time => true,
    };
    let is_behind = is_behind.load(Ordering::SeqCst) && session.is_connected();
    // An entry may be on its way to the store: its fate has to be known before it can be removed.
    drop(cancel);
    if is_late {
        // Most often that is done at once, and the caller's next try does not meet this one's remains.
        let cleared = tokio::time::timeout(CLEARING, &mut turn).await;
        let is_cleared = cleared.is_ok();
        let outcome = match cleared {
            // The turn came at the last moment.
            Ok(Ok(Some(place))) => Ok(Some(place)),
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) | Err(_) => Err(too_late(is_behind)),
        };
        drop(answer.send(outcome));
        if is_cleared {
            return;
        }
    }
    drop(turn.await);
}

/// A caller who was not behind anybody, as far as he knows, was kept waiting by the store.
fn too_late(is_behind: bool) -> Error {
    if is_behind {
        Error::new(ErrorKind::Timeout, "acquire", "it was not free within the time given")
    } else {
        Error::new(
            ErrorKind::Unavailable,
            "acquire",
            "the store did not answer within the time given",
        )
    }
}
