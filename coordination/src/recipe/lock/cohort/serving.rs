//! What acts for a cohort, and those who wait.
//!
//! One task of the session, [`drive`], acts for the cohort while anybody waits or has a turn, and reads as the protocol: acquire
//! the lock as everybody does, give turns under that grant one after the other, release it. A caller that waits has a channel on
//! which its guard comes, and the guard has one end of a channel whose drop ends the turn. So futures and guards may be dropped at
//! any moment: a guard that was on its way is dropped too, which ends its turn, and the next caller has one.

use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::guard::{Batch, CohortGuard};
use crate::canary::{Canary, sings};
use crate::env::Unforked;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::panics::{caught, on_purpose};
use crate::recipe::engine::grant::Grant;
use crate::recipe::engine::place::Place;
use crate::recipe::lock::Lock;
use crate::session::{Purpose, Session};

/// How long after the grant a batch that may last longer than this begins to follow requests to let go, whether or not a task wants to
/// know of them. Sooner it would cost each short batch a watch.
pub(super) const LISTENS_AFTER: Duration = Duration::from_millis(200);

/// What the clones of a cohort share.
pub(super) struct Shared {
    pub(super) lock: Lock,
    pub(super) turns: u32,
    pub(super) time: Duration,
    state: Mutex<State>,
    /// Told when the last of those who wait has gone away.
    unwanted: Notify,
    /// The place at the store of the cohort's entry while it waits.
    place: Place,
}

#[derive(Default)]
struct State {
    /// Those who wait, by a number that rises.
    waiting: BTreeMap<u64, oneshot::Sender<Result<CohortGuard>>>,
    last: u64,
    /// Whether [`drive`] acts for those who wait.
    is_driven: bool,
    /// Whether the cohort has the lock.
    has_batch: bool,
}

/// Where the outcome of a release goes.
pub(super) type Reply = oneshot::Sender<Result<()>>;

impl Shared {
    pub(super) fn new(lock: Lock, turns: u32, time: Duration) -> Self {
        let (state, unwanted) = (Mutex::default(), Notify::new());
        Self { lock, turns, time, state, unwanted, place: Place::new() }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.lock.queue.session
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this mutex can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues behind those who wait.
    pub(super) fn enter(self: &Arc<Self>) -> Waiter<'_> {
        let (answer, answered) = oneshot::channel();
        let (number, is_driven) = {
            let mut state = self.state();
            state.last += 1;
            let number = state.last;
            state.waiting.insert(number, answer);
            (number, std::mem::replace(&mut state.is_driven, true))
        };
        let waiter = Waiter { shared: self, number, answer: Unforked::new(answered) };
        if !is_driven {
            let driver = Driver { shared: Arc::clone(self), has_ended: false };
            // Not under the mutex: if the runtime has ended, the task is dropped here, and its drop locks the mutex.
            drop(self.session().spawn(drive(driver)));
        }
        waiter
    }

    fn is_wanted(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    async fn until_unwanted(&self) {
        while self.is_wanted() {
            self.unwanted.notified().await;
        }
    }

    /// The first of those who wait.
    fn next(&self) -> Option<oneshot::Sender<Result<CohortGuard>>> {
        Some(self.state().waiting.pop_first()?.1)
    }

    /// Gives this turn to the first who waits, and returns what tells of its end; `None`: nobody waits.
    fn hand_on(&self, batch: &Arc<Batch>, turn: u32) -> Option<oneshot::Receiver<Reply>> {
        while let Some(waiter) = self.next() {
            let (over, ended) = oneshot::channel();
            let batch = Arc::clone(batch);
            let guard = CohortGuard { batch, turn, over: Some(Unforked::new(over)) };
            if waiter.send(Ok(guard)).is_ok() {
                return Some(ended);
            }
        }
        None
    }

    /// Answers those who wait with an error.
    fn fail(&self, error: &Error) {
        let failed: Vec<_> = match error.kind() {
            // The lock was granted, and lost on its way to one of them. The others wait for the next session.
            ErrorKind::Lost => self.next().into_iter().collect(),
            _ => std::mem::take(&mut self.state().waiting).into_values().collect(),
        };
        for waiter in failed {
            drop(waiter.send(Err(error.clone())));
        }
    }
}

/// A task that waits. Dropping it takes it out of the queue.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    number: u64,
    pub(super) answer: Unforked<oneshot::Receiver<Result<CohortGuard>>>,
}

impl Waiter<'_> {
    /// The error of a task whose time is over.
    pub(super) fn too_late(&self, limit: Option<Duration>) -> Error {
        let session = self.shared.session();
        let is_blocked = {
            let state = self.shared.state();
            let first = state.waiting.keys().next();
            let is_first = first.is_none_or(|first| *first >= self.number);
            // Between two batches nobody has the lock who is known, but others of the cohort are before this one.
            state.has_batch || !is_first || self.shared.place.is_blocked()
        };
        if is_blocked && session.is_connected() {
            let message = format!("it was not free within {:?}", limit.unwrap_or_default());
            return Error::new(ErrorKind::Timeout, "acquire", message);
        }
        // The cohort's entry may be at the store by now, until the last of those who wait has gone away.
        session
            .late("acquire", "the store did not answer within the time given", None)
            .with_effect(Effect::Unknown)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // In a forked child a thread of the parent may have locked the mutex for ever.
        if !self.shared.session().is_own_process() {
            return;
        }
        let (left, is_last) = {
            let mut state = self.shared.state();
            (state.waiting.remove(&self.number), state.waiting.is_empty())
        };
        if left.is_some() && is_last {
            self.shared.unwanted.notify_one();
        }
    }
}

/// The task that acts for the cohort. If it is dropped before it has ended by itself, its runtime has ended, and those who wait are
/// told.
struct Driver {
    shared: Arc<Shared>,
    has_ended: bool,
}

impl Driver {
    /// Whether anybody waits. If not, the next who comes starts another task.
    fn goes_on(&mut self) -> bool {
        let mut state = self.shared.state();
        state.is_driven = !state.waiting.is_empty();
        self.has_ended = !state.is_driven;
        state.is_driven
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.has_ended || !self.shared.session().is_own_process() {
            return;
        }
        let waiting = {
            let mut state = self.shared.state();
            (state.is_driven, state.has_batch) = (false, false);
            std::mem::take(&mut state.waiting)
        };
        // Not under the mutex, because this wakes tasks.
        drop(waiting);
    }
}

/// Acts for the cohort as long as anybody waits.
async fn drive(mut driver: Driver) {
    let shared = Arc::clone(&driver.shared);
    while driver.goes_on() {
        let served = caught("acquire", batch(&shared)).await.flatten();
        shared.state().has_batch = false;
        if let Err(error) = served {
            shared.fail(&error);
        }
    }
}

/// Acquires the lock and gives turns under the grant; gives up if nobody waits any longer.
async fn batch(shared: &Shared) -> Result<()> {
    on_purpose("cohort");
    let guard = tokio::select! {
        biased;
        acquired = shared.place.of(shared.lock.acquire(None)) => acquired?,
        () = shared.until_unwanted() => return Ok(()),
    };
    shared.state().has_batch = true;
    serve(shared, guard.into_grant()).await;
    Ok(())
}

/// Gives turns under this grant, one after the other, and releases it when nobody waits, or when others are to have it.
async fn serve(shared: &Shared, grant: Grant) {
    let end = grant.since().checked_add(shared.time);
    let turns = shared.turns.saturating_add(u32::from(sings(Canary::OneTurnTooMany)));
    let mut lasts = pin!(lasts(grant.since(), shared));
    let mut is_listening = false;
    let batch = Batch::new(grant);
    let mut stops = pin!(shared.session().refuses("acquire", Purpose::Work));
    let mut is_stopping = false;
    let mut releases: Option<Reply> = None;
    for turn in 0..turns {
        let is_late = turn > 0 && end.is_some_and(|end| Instant::now() >= end);
        // RR1: who asks for the lock waits for the turn, not for the rest of the batch.
        // S6: a turn begins only while the grant is good by the clock.
        if is_late || batch.is_asked() || !batch.grant.is_held() {
            break;
        }
        let Some(mut ended) = shared.hand_on(&batch, turn) else { break };
        if let Some(reply) = releases.take() {
            drop(reply.send(Ok(())));
        }
        // Invariant: nobody has the next turn before this one has ended, or its guard is lost for good.
        releases = loop {
            tokio::select! {
                biased;
                () = &mut lasts, if !is_listening => {
                    is_listening = true;
                    batch.listen();
                }
                ended = &mut ended => break ended.ok(),
                // L2: who has the lost guard may keep it for as long as it likes. The others do not wait for that.
                _ = batch.grant.lost() => return,
                // L8: those who wait are refused at once, and the turn goes on.
                refused = &mut stops, if !is_stopping => {
                    is_stopping = true;
                    shared.fail(&refused);
                }
            }
        };
    }
    release(batch, releases).await;
}

/// Resolves when a batch that was granted at this moment begins to listen by itself; never, if no turn begins later than that anyway.
async fn lasts(since: Instant, shared: &Shared) {
    match since.checked_add(LISTENS_AFTER) {
        Some(moment) if shared.time > LISTENS_AFTER && shared.turns > 1 => {
            sleep_until(moment).await
        }
        _ => pending().await,
    }
}

/// Releases the lock, and answers who has called the last release; `None`: it has dropped its guard, or nobody had one.
///
/// It does not wait for the store, because those who wait have to enter the queue meanwhile.
async fn release(batch: Arc<Batch>, releases: Option<Reply>) {
    let Some(reply) = releases else { return batch.grant.own_entry().let_go() };
    let session = Arc::clone(batch.grant.own_entry().session());
    let mut releasing = Box::pin(async move { batch.grant.release().await });
    // Polled here first, so that the removal is on its way before the cohort's next entry.
    match poll_fn(|context| Poll::Ready(releasing.as_mut().poll(context))).await {
        Poll::Ready(released) => drop(reply.send(released)),
        Poll::Pending => {
            drop(session.spawn(async move { drop(reply.send(releasing.await)) }));
        }
    }
}
