//! Taking a turn: enter the queue, wait until the entry's turn has come, or leave. Every recipe with a queue is built on this.
//!
//! [`Acquire::contend`] reads as the protocol: enter, wait for the turn, check that the entry still exists, confirm that the
//! session is alive. Whose turn it is depends on the entries before ours, or on what a [`Policy`] decides from the whole queue.

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::deciding::await_decision;
use super::own_entry::{Contents, OwnEntry};
use super::place::Call;
use super::policy::Policy;
use super::waiting::Waiting;
use super::waits::Waits;
use crate::backend::{Blocker, Data, EntryId, EntryRef, Mode, Position};
use crate::canary::{Canary, sings};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::session::{Lease, Session};

/// What a caller asks of a queue.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) contents: Contents,
    /// Decides whose turn it is; `None`: an entry has its turn when no entry before it blocks it.
    pub(crate) policy: Option<Arc<dyn Policy>>,
}

/// A caller's request for its turn, while the protocol runs for it.
pub(in crate::recipe) struct Acquire {
    pub(in crate::recipe) session: Arc<Session>,
    pub(in crate::recipe) queue: QueueKey,
    pub(in crate::recipe) request: Request,
    pub(in crate::recipe) waiting: Waiting,
    pub(in crate::recipe) waits: Waits,
    /// What is told of it while it waits.
    pub(in crate::recipe) call: Arc<Call>,
    pub(in crate::recipe) tries: Mutex<Tries>,
}

/// What is known of the tries to enter.
#[derive(Default)]
pub(in crate::recipe) struct Tries {
    /// Why the store refused the last try.
    pub(in crate::recipe) refused: Option<Error>,
    /// Whether one of the tries may have entered an entry, or may yet do so.
    pub(in crate::recipe) may_be_there: bool,
    /// Whether one of the tries may have written the queue's value, which stays when its entry is removed.
    pub(in crate::recipe) may_have_written: bool,
}

/// An entry that was entered, and its position at that moment.
pub(in crate::recipe) struct Started {
    // Boxed, because it is moved several times on the path of every lock.
    pub(in crate::recipe) own: Box<OwnEntry>,
    pub(in crate::recipe) position: Position,
}

impl Started {
    pub(in crate::recipe) fn new(mut own: Box<OwnEntry>, position: Position) -> Self {
        own.entered(position.seq);
        Self { own, position }
    }
}

/// The outcome of waiting for the turn.
pub(in crate::recipe) enum Turn {
    /// The turn has come. With the entry's new data, if the policy changed the data.
    Mine(Option<Data>),
    /// The turn has not come, and the caller does not wait.
    NotNow,
    /// The session ended, or somebody removed the entry, or it has to be given up.
    EntryLost,
}

impl Acquire {
    /// The protocol. Runs until the turn has come or `cancelled` closes; begins with the entry that was `started`, if there is
    /// one.
    pub(in crate::recipe) async fn contend(
        &self,
        mut started: Option<Started>,
        mut cancelled: watch::Receiver<()>,
    ) -> Result<Option<Box<OwnEntry>>> {
        let (mut adopted, mut was_lost) = (None, false);
        loop {
            let Started { mut own, position } = match started.take() {
                Some(started) => started,
                None => {
                    if cancelled.has_changed().is_err() {
                        // `refused` stays as it is: a caller whose time is over gets it as its error.
                        return Ok(None);
                    }
                    // The last entry was lost, and with it what was known of the reasons why it had to wait.
                    let had_to_wait = self.call.is_blocked() && !was_lost;
                    self.call.note_blocked(false);
                    self.call.note_own(None);
                    self.tries().refused = None;
                    if let Some(policy) = &self.request.policy {
                        policy.refused(None);
                    }
                    let lease = tokio::select! {
                        biased;
                        _ = cancelled.changed() => return Ok(None),
                        lease = self.session.lease("acquire") => lease,
                    };
                    // Without another session nobody sees that what was entered in the last one is gone. If that was lost, and not
                    // stopped, the entry that it had to wait for may be gone since, and its own be the first.
                    let may_be_there = !had_to_wait && self.tries().may_be_there;
                    let lease = lease.map_err(|error| match may_be_there {
                        true => error.with_effect(Effect::Unknown),
                        false => error,
                    })?;
                    // The store opens no session of this member while the session before may be alive. Now that one is open, the
                    // earlier session is over, and with it any entry that an earlier try has left.
                    self.tries().may_be_there = false;
                    match self.enter(lease, &mut adopted, &cancelled).await? {
                        Some(started) => started,
                        None => continue,
                    }
                }
            };
            self.waits.note_own(&own);
            let turn = tokio::select! {
                biased;
                turn = self.await_turn(&own, position) => Some(turn),
                _ = cancelled.changed() => None,
            };
            let lost = own.lease().loss_reason();
            was_lost = lost.is_some_and(|reason| reason != LossReason::Closed);
            let Some(turn) = turn else {
                let is_permit = self.request.policy.is_some();
                if sings(Canary::CancelledAcquireNotCleaned)
                    || sings(Canary::PermitLeaked) && is_permit
                {
                    own.forget();
                }
                return Ok(None);
            };
            match turn {
                Ok(Turn::Mine(kept)) => {
                    own.keeps(kept);
                    own.grant()?;
                    return Ok(Some(own));
                }
                Ok(Turn::NotNow) => return Ok(None),
                // Nothing was granted, so all that is lost is the place in the queue: enter again. An entry that is still there was given
                // up because it had taken what another server knew to be free. It is removed first, so that the next one does not meet it,
                // and is not refused because of it.
                Ok(Turn::EntryLost) => drop(own.give_up().await),
                Err(error) if error.kind() == ErrorKind::Lost => {}
                Err(error) => {
                    // Removed before the error is returned, so that the caller's next try does not meet this entry.
                    let gone = own.give_up().await.is_ok();
                    return Err(if gone { error } else { error.with_effect(Effect::Unknown) });
                }
            }
        }
    }

    /// Enters under this lease; `None`: the session was lost before the entry was entered, or the caller does not wait any longer.
    async fn enter(
        &self,
        lease: Arc<Lease>,
        adopted: &mut Option<EntryId>,
        cancelled: &watch::Receiver<()>,
    ) -> Result<Option<Started>> {
        let session = &self.session;
        let mut own = Box::new(OwnEntry::new(session, lease, &self.queue, &self.request.contents));
        if sings(Canary::OldEntryAdopted) {
            own.adopt(adopted);
        }
        let entering = session.retry_until_settled(own.lease(), "acquire", || async {
            match cancelled.has_changed() {
                Ok(_) => {
                    let before = std::mem::replace(&mut self.tries().may_be_there, true);
                    let entered = session.backend.enter(own.entry()).await;
                    let refused = entered.as_ref().err().cloned();
                    let did_nothing =
                        refused.as_ref().is_some_and(|error| error.effect() == Effect::None);
                    let mut tries = self.tries();
                    tries.may_be_there = before || !did_nothing;
                    tries.refused = refused;
                    entered.map(Some)
                }
                // An earlier try may have entered the entry. It is removed when `own` is dropped.
                Err(_) => Ok(None),
            }
        });
        match self.unless_unsent(&own, entering, cancelled.clone()).await {
            Ok(position) => Ok(position.map(|position| Started::new(own, position))),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(None),
            Err(error) if error.effect() == Effect::Unknown || self.tries().may_be_there => {
                // The call was refused, but this try or an earlier one may have entered the entry: it is removed before the error
                // is returned.
                let gone = own.give_up().await.is_ok();
                Err(error.with_effect(if gone { Effect::None } else { Effect::Unknown }))
            }
            Err(error) => Err(error),
        }
    }

    pub(in crate::recipe) fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that enters this entry. `None`: the caller does not wait any longer, and nothing was sent so far. Then the
    /// call is dropped, so that its slot among the calls in flight goes to callers who wait.
    async fn unless_unsent(
        &self,
        own: &OwnEntry,
        entering: impl Future<Output = Result<Option<Position>>>,
        mut cancelled: watch::Receiver<()>,
    ) -> Result<Option<Position>> {
        tokio::pin!(entering);
        tokio::select! {
            biased;
            entered = &mut entering => return entered,
            _ = cancelled.changed() => {}
        }
        match self.session.backend.was_sent(&own.entry().entry_ref) {
            true => entering.await,
            false => Ok(None),
        }
    }

    async fn await_turn(&self, own: &OwnEntry, position: Position) -> Result<Turn> {
        match &self.request.policy {
            Some(policy) => await_decision(self, own, &**policy).await,
            None => self.await_unblocked(own, position).await,
        }
    }

    /// Waits until no live entry before ours blocks it: the rule by which locks are granted.
    async fn await_unblocked(&self, own: &OwnEntry, mut position: Position) -> Result<Turn> {
        let entry = own.entry();
        let may_rest = entry.mode == Mode::Exclusive;
        let mut in_line = None;
        loop {
            let Some(blocker) = position.blocker else { return Ok(Turn::Mine(None)) };
            self.call.note_blocked(true);
            if self.waiting == Waiting::Never {
                return Ok(Turn::NotNow);
            }
            self.waits.warn_of_itself(own, &blocker);
            let in_line =
                in_line.get_or_insert_with(|| own.lease().line.join(&self.queue, position.seq));
            let recheck = self.recheck_interval(own);
            let unblocked =
                in_line.ask(may_rest, || self.session.unblocked(entry, &blocker, recheck));
            let unblocked = async { unblocked.await.unwrap_or(Ok(())) };
            if !self.await_change(own, unblocked).await {
                return Ok(Turn::EntryLost);
            }
            // Invariant (S6 in `docs/guarantees.md`): a turn counts only if our own entry is seen to exist after the turn has come.
            let look = self.session.retry_while_waiting(own.lease(), "acquire", || {
                self.session.backend.position(entry, position.seq)
            });
            // A look has no effect, whether its answer came or not.
            let look = look.await.map_err(|error| error.with_effect(Effect::None));
            match look? {
                Some(now) => position = now,
                None if sings(Canary::NoOwnEntryCheck) => return Ok(Turn::Mine(None)),
                None => {
                    in_line.lost();
                    return Ok(Turn::EntryLost);
                }
            }
        }
    }

    /// Waits until an entry is gone, or no longer blocks an entry of this mode. False: our session has ended. May return early,
    /// so the caller checks for itself.
    ///
    /// It may rest while others of the session that are about to decide wait before it: whoever waits here has to let each of those
    /// decide first, as an exclusive entry has to let those before it have their turns.
    pub(in crate::recipe) async fn await_gone(
        &self,
        own: &OwnEntry,
        blocker: &Blocker,
        mode: Mode,
    ) -> bool {
        let before = EntryRef { queue: self.queue.clone(), id: blocker.id.clone() };
        let recheck = self.recheck_interval(own);
        let mut in_line = own.lease().line.join(&self.queue, own.seq().unwrap_or_default());
        let gone = in_line.ask(true, || self.session.gone(&before, blocker.seq, mode, recheck));
        self.await_change(own, async { gone.await.unwrap_or(Ok(())) }).await
    }

    fn recheck_interval(&self, own: &OwnEntry) -> Duration {
        self.session.recheck_interval(own.lease(), &own.entry().entry_ref.id)
    }

    /// Waits until `change` resolves. False: our session has ended.
    async fn await_change(&self, own: &OwnEntry, change: impl Future<Output = Result<()>>) -> bool {
        let lease = own.lease();
        tokio::select! {
            biased;
            _ = lease.ended() => return false,
            outcome = change => if let Err(error) = outcome {
                tracing::debug!(%error, "cannot watch the entry before");
                tokio::time::sleep(self.session.retry_delays(lease.ttl).next_delay()).await;
            }
        }
        true
    }
}
