//! The caller's side of a turn. The protocol runs in a task of the session, and the caller's future only waits for the task's
//! answer.
//!
//! So the caller's future may be dropped at any await: the task then gives up the grant that it would have handed over.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::{self, coop};
use tracing::Instrument;

use super::own_entry::OwnEntry;
use super::place::{Call, EndsWithIt};
use super::turn::{Acquire, Request, Started, Tries};
use super::waiting::Waiting;
use super::waits::Waits;
use crate::canary::{Canary, sings};
use crate::env::Unforked;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::panics::on_purpose;
use crate::session::{Purpose, Session, Sight, State};

/// How long a call whose timeout has passed goes on waiting for the removal of its entry. The call may return up to twice as much
/// too late (L4 in `docs/guarantees.md`).
const CLEARING: Duration = Duration::from_millis(50);

/// Takes the turn in `queue`; `None` only for [`Waiting::Never`].
///
/// # Cancel safety
///
/// Dropping the future at any point leaves nothing behind.
pub(crate) async fn run_acquire(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
    waiting: Waiting,
) -> Result<Option<Box<OwnEntry>>> {
    session.check_process("acquire")?;
    session.admit("acquire", request.contents.purpose)?;
    give_way().await;
    let started = match start_now(session, queue, request) {
        Some(Ok(Started { mut own, position })) if position.blocker.is_none() => {
            own.grant()?;
            own.deliver();
            return Ok(Some(own));
        }
        Some(Ok(_)) if waiting == Waiting::Never => return Ok(None),
        Some(Ok(started)) => Some(started),
        Some(Err(error)) => return Err(error),
        None => None,
    };
    // Boxed, so that the future of a call that is granted at once is not made larger by what only a waiting call needs.
    Box::pin(acquire_in_task(session, queue, request, waiting, started)).await
}

/// Goes on with what has `started`, or begins, in a task of the session.
async fn acquire_in_task(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
    waiting: Waiting,
    started: Option<Started>,
) -> Result<Option<Box<OwnEntry>>> {
    session.check_thread("acquire")?;
    let is_told = request.contents.purpose != Purpose::Step;
    let _waiting = is_told.then(|| session.about(queue).waiting());
    let (answer, answered) = oneshot::channel();
    let is_blocked = started.as_ref().is_some_and(|started| started.position.blocker.is_some());
    let call = Call::begin(session, queue, is_blocked);
    let _until_then = EndsWithIt(Arc::clone(&call));
    let acquire = Acquire {
        session: Arc::clone(session),
        queue: queue.clone(),
        request: request.clone(),
        waiting,
        waits: Waits::begin(session, queue, waiting, task::try_id(), &call),
        call,
        tries: Mutex::new(Tries { may_be_there: started.is_some(), ..Tries::default() }),
    };
    let span = session.about(queue).acquiring();
    let task = async move {
        on_purpose("turn");
        drive(acquire, started, answer).await;
    };
    let task = Unforked::new(session.spawn(task.instrument(span)));
    // Dropping the receiver wakes the task, which a forked child must not do.
    let outcome = match Unforked::new(answered).await {
        Ok(outcome) => outcome,
        Err(_) => Err(match task.await {
            Ok(()) => session.ended("acquire"),
            Err(ended) => session.unanswered("acquire", ended),
        }),
    };
    if let Ok(Some(own)) = &outcome {
        own.deliver();
    }
    outcome
}

/// Lets other tasks of this thread run when the caller's task has used up its budget. Acquires that succeed at once never wait,
/// so a loop of them would keep its thread for ever.
///
/// If the caller blocks its thread with an executor of its own, tokio never renews the budget; then this returns after one yield.
async fn give_way() {
    if coop::has_budget_remaining() {
        return coop::consume_budget().await;
    }
    let mut has_given_way = false;
    let give_way = poll_fn(|context| {
        if std::mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    give_way.await;
}

/// Enters at once, on stores that can do so without waiting; `None` on all other stores, and if a policy decides whose turn it
/// is.
fn start_now(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
) -> Option<Result<Started>> {
    if request.policy.is_some() {
        return None;
    }
    let own = Box::new(OwnEntry::new(session, session.lease_now()?, queue, &request.contents));
    let entered = session.backend.enter_now(own.entry());
    if let Some(entered) = &entered {
        session.count("acquire", entered);
    }
    match entered {
        Some(Ok(position)) => Some(Ok(Started::new(own, position))),
        Some(Err(error)) => match error.loss_reason() {
            // Nothing was granted, so only the session is lost: wait for the next one.
            Some(reason) => {
                own.lease().lose(reason);
                None
            }
            None => Some(Err(error.on_backend(session.backend.scheme()))),
        },
        None => {
            own.forget();
            None
        }
    }
}

/// Why a turn is not waited for any longer.
enum Over {
    /// The caller has gone away.
    Unwanted,
    Late,
    Refused(Error),
}

/// Waits for the turn on the caller's behalf, and answers. If the caller has gone away, removes the entry.
async fn drive(
    acquire: Acquire,
    started: Option<Started>,
    mut answer: oneshot::Sender<Result<Option<Box<OwnEntry>>>>,
) {
    let (cancel, cancelled) = watch::channel(());
    let turn = async {
        let outcome = acquire.contend(started, cancelled).await;
        outcome.map_err(|error| match acquire.tries().may_have_written {
            true => error.with_effect(Effect::Unknown),
            false => error,
        })
    };
    tokio::pin!(turn);
    let over = tokio::select! {
        biased;
        outcome = &mut turn => return drop(answer.send(outcome)),
        () = answer.closed() => Over::Unwanted,
        error = acquire.session.refuses("acquire", acquire.request.contents.purpose) => Over::Refused(error),
        () = out_of_time(&acquire) => Over::Late,
        never = acquire.waits.tell_that_it_is_long() => match never {},
    };
    let is_blocked = acquire.call.is_blocked() && acquire.session.is_connected();
    // Dropping this tells the protocol to end. A request may be on its way to the store: its outcome must be known before the entry
    // can be removed.
    drop(cancel);
    if !matches!(over, Over::Unwanted) {
        // Wait a moment for the removal, which is most often done at once: then the caller's next try does not meet this entry.
        let cleared = tokio::time::timeout(CLEARING, &mut turn).await;
        let Tries { refused, may_be_there, .. } = std::mem::take(&mut *acquire.tries());
        let error = match over {
            Over::Refused(error) => error,
            Over::Late | Over::Unwanted => too_late(&acquire, is_blocked, refused),
        };
        let is_cleared = cleared.is_ok();
        let outcome = match cleared {
            // The turn came at the last moment: the caller gets the grant.
            Ok(Ok(Some(own))) => Ok(Some(own)),
            Ok(Err(error)) => Err(error),
            // A try may have left an entry, which is removed when the store can be reached.
            Ok(Ok(None)) | Err(_) if !is_blocked && may_be_there => {
                Err(error.with_effect(Effect::Unknown))
            }
            Ok(Ok(None)) | Err(_) => Err(error),
        };
        drop(answer.send(outcome));
        if is_cleared {
            return;
        }
    }
    drop(turn.await);
}

/// Resolves when the caller's time is over; never, if the caller waits without a limit.
async fn out_of_time(acquire: &Acquire) {
    let session = &acquire.session;
    match acquire.waiting.limit(session.call_timeout()) {
        None => std::future::pending().await,
        Some(limit) if sings(Canary::TimeoutRestarts) && acquire.waiting != Waiting::Never => {
            let mut views = session.observe(&acquire.queue, Sight::Standing);
            while let Ok(Ok(_)) = tokio::time::timeout(limit, views.next()).await {}
        }
        Some(limit) => acquire.waits.wait_for_at_most(limit).await,
    }
}

/// The error of a caller whose time is over. If no other entry was in its way, the store kept it waiting, and may have said why.
fn too_late(acquire: &Acquire, is_blocked: bool, refused: Option<Error>) -> Error {
    let session = &acquire.session;
    // That a store had no room is not what it said last if it cannot be reached now.
    let is_old =
        |refused: &Error| refused.kind() == ErrorKind::Quota && session.state() != State::Connected;
    let refused = refused.filter(|refused| !is_old(refused));
    match refused {
        _ if is_blocked => Error::new(ErrorKind::Timeout, "acquire", acquire.waits.not_free()),
        Some(_) => session.late("acquire", "it was not granted within the time given", refused),
        None => session.late("acquire", "the store did not answer within the time given", None),
    }
}
