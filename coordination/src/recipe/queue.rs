//! Take a place in an ordered queue, wait for the turn, give it up: what queued recipes are made of.
//!
//! [`take`] reads as the protocol: enter, await the predecessor's end, look again, confirm that the
//! session still stands. It runs in the session's task; the caller listens ([`acquire`]). So the
//! caller's future may be dropped at any await, and what it would have got is given up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::backend::{EntryId, EntryRef, LossDetection, NewEntry, Position};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::session::{Hold, Lease, Session};

/// How long a grant goes unwatched: shorter ones cost no watch at all.
const UNWATCHED: Duration = Duration::from_millis(20);

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

/// A place in a queue, from before it is entered until it is given up. Dropping it gives it up.
pub(crate) struct Place {
    session: Arc<Session>,
    lease: Arc<Lease>,
    entry: NewEntry,
    hold: Arc<Hold>,
    /// Known once the store has answered that it was entered.
    seq: Option<u64>,
}

impl Place {
    fn new(session: &Arc<Session>, lease: Arc<Lease>, queue: &QueueKey) -> Self {
        let entry = NewEntry {
            place: EntryRef { queue: queue.clone(), id: EntryId::random(lease.id) },
            session: lease.id,
            member: Arc::clone(&session.settings.member),
        };
        Self { session: Arc::clone(session), lease, entry, hold: Arc::default(), seq: None }
    }

    /// The number of the entry; `None` only before it was entered.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.seq
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Why the place is not to be relied on, judged at this moment; `None` while it is.
    pub(crate) fn lost(&self) -> Option<LossReason> {
        if !self.session.is_own_process() {
            return Some(LossReason::Closed);
        }
        self.hold.lost().or_else(|| self.lease.lost())
    }

    /// Resolves when [`lost`](Self::lost) would answer something.
    pub(crate) async fn wait_lost(&self) -> LossReason {
        match self.lost() {
            Some(reason) => reason,
            None => self.hold.wait_lost().await,
        }
    }

    /// Gives the place up and tells whether the store confirmed.
    ///
    /// Dropping the future leaves the release going on in the background.
    pub(crate) async fn give_up(self) -> Result<()> {
        if let Some(reason) = self.lost() {
            return Err(Error::lost("release", reason));
        }
        self.hold.begin_release();
        self.lease.deregister(&self.entry.place.id);
        self.session.leave_confirmed(&self.lease, &self.entry.place, self.seq).await
    }

    /// It is our turn: stand in for it, if the session still can.
    fn grant(&mut self) -> Result<()> {
        let registered = self.lease.register(&self.entry.place, &self.hold);
        registered.map_err(|reason| Error::lost("acquire", reason))
    }

    /// Watches the own entry, on stores that tell of its removal.
    fn watch(&self) {
        if self.session.backend.loss_detection() == LossDetection::Heartbeat {
            return;
        }
        let (session, lease) = (Arc::clone(&self.session), Arc::clone(&self.lease));
        let Some(seq) = self.seq else { return };
        let entry = self.entry.place.clone();
        let monitor = self.session.spawn(async move {
            tokio::time::sleep(UNWATCHED).await;
            let mut delays = session.retry_delays(lease.ttl);
            while session.backend.gone(&entry, seq, session.recheck_interval(&lease)).await.is_err()
            {
                tokio::time::sleep(delays.next_delay()).await;
            }
            lease.entry_lost(&entry.id);
        });
        self.hold.watched_by(monitor.abort_handle());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.hold.begin_release() {
            self.lease.deregister(&self.entry.place.id);
            self.session.leave_in_background(&self.lease, self.entry.place.clone(), self.seq);
        }
    }
}

/// Takes the turn in `queue`; `None` only for [`Patience::Never`].
///
/// # Cancel safety
///
/// Dropping the future at any point leaves nothing behind.
pub(crate) async fn acquire(
    session: &Arc<Session>,
    queue: &QueueKey,
    patience: Patience,
) -> Result<Option<Place>> {
    session.check_process("acquire")?;
    let started = match start_now(session, queue) {
        Some(Ok(Started { place, position: Position { predecessor: None, .. } })) => {
            let mut place = place;
            place.grant()?;
            place.watch();
            return Ok(Some(place));
        }
        Some(Ok(_)) if patience == Patience::Never => return Ok(None),
        Some(Ok(started)) => Some(started),
        Some(Err(error)) => return Err(error),
        None => None,
    };
    let (answer, answered) = oneshot::channel();
    let task = wait(Arc::clone(session), queue.clone(), patience, started, answer);
    drop(session.spawn(task));
    answered.await.unwrap_or_else(|_| Err(Error::lost("acquire", LossReason::Closed)))
}

/// A place that has been entered, and where it stood then.
struct Started {
    place: Place,
    position: Position,
}

impl Started {
    fn new(mut place: Place, position: Position) -> Self {
        place.seq = Some(position.seq);
        Self { place, position }
    }
}

/// Enters at once, on stores that need no waiting for it.
fn start_now(session: &Arc<Session>, queue: &QueueKey) -> Option<Result<Started>> {
    let place = Place::new(session, session.lease_now()?, queue);
    match session.backend.enter_now(&place.entry) {
        Some(Ok(position)) => Some(Ok(Started::new(place, position))),
        Some(Err(error)) => match error.loss_reason() {
            // Nothing was granted, so all that is lost is the session: wait for the next one.
            Some(reason) => {
                place.lease.lose(reason);
                None
            }
            None => Some(Err(error.on_backend(session.backend.scheme()))),
        },
        None => {
            // Nothing was entered, so there is nothing to leave.
            place.hold.begin_release();
            None
        }
    }
}

/// Waits for the turn on the caller's behalf, answers, and clears up if the caller has gone.
async fn wait(
    session: Arc<Session>,
    queue: QueueKey,
    patience: Patience,
    started: Option<Started>,
    mut answer: oneshot::Sender<Result<Option<Place>>>,
) {
    let (cancel, cancelled) = watch::channel(());
    let entered = AtomicBool::new(started.is_some());
    let turn = take(&session, &queue, patience, started, &entered, cancelled);
    tokio::pin!(turn);
    let out_of_time = async {
        match patience {
            Patience::Forever => std::future::pending().await,
            Patience::For(limit) => tokio::time::sleep(limit).await,
            Patience::Never => {
                tokio::time::sleep(session.attempt_timeout(Some(session.settings.ttl))).await
            }
        }
    };
    tokio::select! {
        biased;
        outcome = &mut turn => return drop(answer.send(outcome)),
        () = answer.closed() => {}
        () = out_of_time => {
            let knows_the_queue = entered.load(Ordering::SeqCst) && session.is_connected();
            drop(answer.send(Err(too_late(knows_the_queue))));
        }
    }
    // An entry may be on its way to the store: its fate has to be known before it can be removed.
    drop(cancel);
    drop(turn.await);
}

fn too_late(knows_the_queue: bool) -> Error {
    if knows_the_queue {
        Error::new(ErrorKind::Timeout, "acquire", "it was not free within the time given")
    } else {
        Error::new(
            ErrorKind::Unavailable,
            "acquire",
            "the store did not answer within the time given",
        )
    }
}

/// The protocol. Runs until the turn has come or `cancelled` closes.
async fn take(
    session: &Arc<Session>,
    queue: &QueueKey,
    patience: Patience,
    mut started: Option<Started>,
    entered: &AtomicBool,
    mut cancelled: watch::Receiver<()>,
) -> Result<Option<Place>> {
    loop {
        let Started { mut place, position } = match started.take() {
            Some(started) => started,
            None => {
                let lease = tokio::select! {
                    lease = session.lease("acquire") => lease?,
                    _ = cancelled.changed() => return Ok(None),
                };
                let place = Place::new(session, lease, queue);
                match session
                    .persist(&place.lease, "acquire", || session.backend.enter(&place.entry))
                    .await
                {
                    Ok(position) => Started::new(place, position),
                    // Not granted yet, so nothing was lost but the place: queue again.
                    Err(error) if error.kind() == ErrorKind::Lost => continue,
                    Err(error) => return Err(error),
                }
            }
        };
        entered.store(true, Ordering::SeqCst);
        let turn = tokio::select! {
            biased;
            turn = await_turn(session, &place, position, patience) => turn,
            _ = cancelled.changed() => return Ok(None),
        };
        match turn {
            Ok(Turn::Mine) => {
                place.grant()?;
                place.watch();
                return Ok(Some(place));
            }
            Ok(Turn::NotNow) => return Ok(None),
            // The session ended, or somebody removed the entry, while it was waiting.
            Ok(Turn::PlaceLost) => {}
            Err(error) if error.kind() == ErrorKind::Lost => {}
            Err(error) => return Err(error),
        }
    }
}

enum Turn {
    Mine,
    NotNow,
    PlaceLost,
}

/// Waits until nothing live is before the place (the grant rule of an exclusive lock).
async fn await_turn(
    session: &Session,
    place: &Place,
    mut position: Position,
    patience: Patience,
) -> Result<Turn> {
    let lease = &place.lease;
    loop {
        let Some(predecessor) = position.predecessor else { return Ok(Turn::Mine) };
        if patience == Patience::Never {
            return Ok(Turn::NotNow);
        }
        let before = EntryRef { queue: place.entry.place.queue.clone(), id: predecessor.id };
        let gone = session.backend.gone(&before, predecessor.seq, session.recheck_interval(lease));
        tokio::select! {
            biased;
            _ = lease.ended() => return Ok(Turn::PlaceLost),
            outcome = gone => if let Err(error) = outcome {
                tracing::debug!(%error, "cannot watch the predecessor");
                tokio::time::sleep(session.retry_delays(lease.ttl).next_delay()).await;
            }
        }
        // Own-entry check (contract S6): the turn counts only if our entry still stands.
        let look = session
            .persist(lease, "acquire", || session.backend.position(&place.entry, position.seq));
        match look.await? {
            Some(now) => position = now,
            None => return Ok(Turn::PlaceLost),
        }
    }
}
