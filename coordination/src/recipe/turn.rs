//! Take a place in a queue, wait for the turn, or leave: what queued recipes are made of.
//!
//! [`take`] reads as the protocol: enter, wait for the turn, look again, confirm that the session still
//! stands. Whose turn it is follows from what stands before, or from what a [`Judge`] says of the whole queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::judge::{Judge, await_verdict};
use super::place::{Contents, Place};
use crate::backend::{Blocker, Data, EntryRef, Mode, Position};
use crate::canary::{Canary, sings};
use crate::error::{Effect, ErrorKind, Result};
use crate::key::QueueKey;
use crate::session::Session;

/// How long to wait for the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until it comes.
    Forever,
    /// At most this long.
    For(Duration),
    /// Not at all.
    Never,
}

impl Patience {
    /// What a caller's `timeout` means: zero is a try.
    pub(crate) fn within(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Self::Forever,
            Some(Duration::ZERO) => Self::Never,
            Some(limit) => Self::For(limit),
        }
    }
}

/// What to ask of a queue.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) contents: Contents,
    /// Whose turn it is; `None`: that of the entry that nothing before it blocks.
    pub(crate) judge: Option<Arc<dyn Judge>>,
}

/// A place that has been entered, and where it stood then.
pub(super) struct Started {
    // Boxed: it is handed on several times, on the path of every lock.
    pub(super) place: Box<Place>,
    pub(super) position: Position,
}

impl Started {
    pub(super) fn new(mut place: Box<Place>, position: Position) -> Self {
        place.entered(position.seq);
        Self { place, position }
    }
}

/// The protocol. Runs until the turn has come or `cancelled` closes. `is_behind` tells whether somebody is known to be
/// in the way.
pub(super) async fn take(
    session: &Arc<Session>,
    queue: &QueueKey,
    request: &Request,
    patience: Patience,
    mut started: Option<Started>,
    is_behind: &AtomicBool,
    mut cancelled: watch::Receiver<()>,
) -> Result<Option<Box<Place>>> {
    let mut adopted = None;
    loop {
        let Started { mut place, position } = match started.take() {
            Some(started) => started,
            None => {
                let lease = tokio::select! {
                    biased;
                    lease = session.lease("acquire") => lease?,
                    _ = cancelled.changed() => return Ok(None),
                };
                let mut place = Box::new(Place::new(session, lease, queue, &request.contents));
                if sings(Canary::OldEntryAdopted) {
                    place.adopt(&mut adopted);
                }
                match session
                    .persist(place.lease(), "acquire", || session.backend.enter(place.entry()))
                    .await
                {
                    Ok(position) => Started::new(place, position),
                    // Not granted yet, so nothing was lost but the place: queue again.
                    Err(error) if error.kind() == ErrorKind::Lost => continue,
                    Err(error) if error.effect() == Effect::Unknown => {
                        // It may stand there although it was refused: gone before the caller hears of it.
                        let gone = place.give_up().await.is_ok();
                        return Err(if gone { error.with_effect(Effect::None) } else { error });
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let waiting = async {
            match &request.judge {
                Some(judge) => await_verdict(session, &place, &**judge, patience, is_behind).await,
                None => await_turn(session, &place, position, patience, is_behind).await,
            }
        };
        let turn = tokio::select! {
            biased;
            turn = waiting => Some(turn),
            _ = cancelled.changed() => None,
        };
        let Some(turn) = turn else {
            let is_permit = request.judge.is_some();
            if sings(Canary::CancelledAcquireNotCleaned) || sings(Canary::PermitLeaked) && is_permit
            {
                place.forget();
            }
            return Ok(None);
        };
        match turn {
            Ok(Turn::Mine(kept)) => {
                place.keeps(kept);
                place.grant()?;
                return Ok(Some(place));
            }
            Ok(Turn::NotNow) => return Ok(None),
            // The session ended, or somebody removed the entry, while it was waiting.
            Ok(Turn::PlaceLost) => {}
            Err(error) if error.kind() == ErrorKind::Lost => {}
            Err(error) => {
                // Gone before the caller hears of it: who asks again must not meet himself.
                drop(place.give_up().await);
                return Err(error);
            }
        }
    }
}

/// What waiting for the turn came to.
pub(super) enum Turn {
    /// With what is kept with the entry now, if that was changed.
    Mine(Option<Data>),
    NotNow,
    PlaceLost,
}

/// Waits until nothing live before the place blocks it (the grant rule of locks).
async fn await_turn(
    session: &Session,
    place: &Place,
    mut position: Position,
    patience: Patience,
    is_behind: &AtomicBool,
) -> Result<Turn> {
    let (lease, entry) = (place.lease(), place.entry());
    loop {
        let Some(blocker) = position.blocker else { return Ok(Turn::Mine(None)) };
        is_behind.store(true, Ordering::SeqCst);
        if patience == Patience::Never {
            return Ok(Turn::NotNow);
        }
        if !await_gone(session, place, &blocker, entry.mode).await {
            return Ok(Turn::PlaceLost);
        }
        // Own-entry check (S6): the turn counts only if our entry still stands.
        let look =
            session.persist(lease, "acquire", || session.backend.position(entry, position.seq));
        match look.await? {
            Some(now) => position = now,
            None if sings(Canary::NoOwnEntryCheck) => return Ok(Turn::Mine(None)),
            None => return Ok(Turn::PlaceLost),
        }
    }
}

/// Waits until an entry is gone, or no longer blocks a waiter of this mode; false: the session ended. May
/// come early.
pub(super) async fn await_gone(
    session: &Session,
    place: &Place,
    blocker: &Blocker,
    mode: Mode,
) -> bool {
    let lease = place.lease();
    let before = EntryRef { queue: place.entry().place.queue.clone(), id: blocker.id.clone() };
    let gone = session.backend.gone(&before, blocker.seq, mode, session.recheck_interval(lease));
    tokio::select! {
        biased;
        _ = lease.ended() => return false,
        outcome = gone => if let Err(error) = outcome {
            tracing::debug!(%error, "cannot watch the entry before");
            tokio::time::sleep(session.retry_delays(lease.ttl).next_delay()).await;
        }
    }
    true
}
