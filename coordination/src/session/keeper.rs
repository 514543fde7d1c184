//! The task that keeps a session alive: opens it, renews its lease, ends it when it is lost, and opens the next one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::failures::{Failures, TakenId};
use super::{ConfirmedHeartbeats, Lease, Phase, Runtime, Session, State};
use crate::backend::registry::Target;
use crate::backend::{EntryId, NewSession, SessionId, Store};
use crate::canary::{Canary, sings};
use crate::characteristics::LossDetection;
use crate::config::Settings;
use crate::env::{self, Process};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::events::Origin;
use crate::panics::{caught, on_purpose};
use crate::retry::DecorrelatedJitter;
use crate::time::{BootInstant, sleep_until};

/// How long connecting may take in all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(4_250);
/// How long a dropped coordinator tries to close its session at the store.
const DROP_TIMEOUT: Duration = Duration::from_millis(500);

/// A request to end the session. The answer is whether the store confirmed the end.
pub(crate) struct Stop(oneshot::Sender<Result<()>>);

/// The coordinator's end of the keeper. Dropping it closes the session.
pub(crate) struct Control(mpsc::UnboundedSender<Stop>);

impl Control {
    /// Closes the session, within a limited time. If it was stopped before, returns what the first stop was told; succeeds if it
    /// was closed in another way.
    pub(crate) async fn stop(&self, session: &Session) -> Result<()> {
        let (confirm, confirmed) = oneshot::channel();
        if self.0.send(Stop(confirm)).is_err() {
            return session.stopped.get().cloned().unwrap_or(Ok(()));
        }
        // The keeper answers every stop that it receives. Without an answer, its runtime has ended.
        confirmed.await.unwrap_or_else(|_| session.stopped.get_or_init(unconfirmed).clone())
    }

    /// [`stop`](Self::stop), as soon as nothing is held, and after `limit` in any case.
    pub(crate) async fn stop_within(&self, session: &Arc<Session>, limit: Duration) -> Result<()> {
        session.refuse();
        let (confirm, confirmed) = oneshot::channel();
        let (stops, drained) = (self.0.clone(), Arc::clone(session));
        // A task of the session's, so that the stop comes if the caller drops its future.
        drop(session.spawn(async move {
            let _ = timeout(limit, drained.drained()).await;
            // If the keeper has ended, the drop of what is sent says so.
            let _ = stops.send(Stop(confirm));
        }));
        match confirmed.await {
            Ok(confirmed) => confirmed,
            // Another call has stopped it meanwhile, or its runtime has ended.
            Err(_) => {
                let stopped = self.stop(session).await;
                match session.closed() {
                    Some(LossReason::RuntimeEnded) => unconfirmed(),
                    _ => stopped,
                }
            }
        }
    }
}

/// What a stop is told whose runtime has ended before the store confirmed it.
fn unconfirmed() -> Result<()> {
    Err(Error::lost("stop", LossReason::RuntimeEnded).with_effect(Effect::Unknown))
}

/// Connects to the store, opens the first session and leaves a task behind that keeps it.
pub(crate) async fn start(target: Target, settings: Settings) -> Result<(Arc<Session>, Control)> {
    let runtime = Runtime::choose(settings.current_runtime || target.is_in_process());
    let (report, started) = oneshot::channel();
    let (control, stops) = mpsc::unbounded_channel();
    runtime.start(async move {
        match connect(target, &settings).await {
            Ok((backend, lease)) => {
                let session = Arc::new(Session::new(backend, settings, lease));
                let keeper = Keeper { session: Arc::clone(&session), stops };
                // If the caller has dropped its future, its `Control` is dropped too, and the keeper ends because of that.
                let _ = report.send(Ok(session));
                keeper.run().await;
            }
            Err(error) => drop(report.send(Err(error))),
        }
    })?;
    let session =
        started.await.unwrap_or_else(|_| Err(Error::lost("connect", LossReason::RuntimeEnded)))?;
    Ok((session, Control(control)))
}

async fn connect(target: Target, settings: &Settings) -> Result<(Arc<dyn Store>, Arc<Lease>)> {
    let limit = Instant::now() + CONNECT_TIMEOUT;
    let late = |_| {
        let message = format!("the store did not answer within {CONNECT_TIMEOUT:?}");
        Error::new(ErrorKind::Unavailable, "connect", message)
    };
    let connecting = async {
        on_purpose("connect");
        target.connect(settings).await
    };
    let connected = timeout_at(limit, caught("connect", connecting)).await.map_err(late)?;
    let backend = connected.flatten()?;
    let characteristics = backend.characteristics().by_clock(env::COUNTS_SUSPEND);
    let missing: Vec<_> = settings
        .require
        .iter()
        .filter(|need| !need.holds(&characteristics))
        .map(|need| need.name())
        .collect();
    if !missing.is_empty() {
        let message = format!("the store lacks what `require` asks for: {}", missing.join(", "));
        return Err(
            Error::new(ErrorKind::Unsupported, "connect", message).on_backend(backend.scheme())
        );
    }
    if let Some(reason) = characteristics.early_expiry {
        tracing::warn!(
            backend = backend.scheme(),
            reason,
            "the store may end a session before its lease is over"
        );
    }
    if let Some(reason) = characteristics.partition_overlap {
        tracing::warn!(
            backend = backend.scheme(),
            reason,
            "two may hold at once while servers of the store are cut off from each other"
        );
    }
    let id = SessionId::random();
    let process = Process::this();
    let origin = Origin::new(
        backend.scheme(),
        settings.namespace.as_str(),
        settings.member.clone(),
        process,
    );
    let mut failed = None;
    let origin = Arc::new(origin);
    let opening = open_while_unavailable(&*backend, settings, id, &origin, &mut failed);
    let error = match timeout_at(limit, opening).await {
        Ok(Ok(lease)) => return Ok((backend, Arc::new(lease))),
        Ok(Err(error)) => error,
        Err(elapsed) => failed.unwrap_or_else(|| late(elapsed)),
    };
    // The session, or a part of it, may have been opened. If it stayed, it would keep the member id until its lease ends, and the
    // caller's next try would be refused because of its own session (S9 in `docs/guarantees.md`).
    let _ = timeout(DROP_TIMEOUT, caught("close", backend.close(id))).await;
    Err(error.on_backend(backend.scheme()))
}

/// Opens the first session. Failures that may pass are noted in `failed`, and the opening is tried again.
async fn open_while_unavailable(
    backend: &dyn Store,
    settings: &Settings,
    id: SessionId,
    origin: &Arc<Origin>,
    failed: &mut Option<Error>,
) -> Result<Lease> {
    let longest = settings.max_backoff.min(settings.heartbeat);
    let mut delays = DecorrelatedJitter::new(settings.initial_backoff, longest);
    loop {
        match open(backend, settings, id, origin).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => *failed = Some(error),
            outcome => return outcome,
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
}

async fn open(
    backend: &dyn Store,
    settings: &Settings,
    id: SessionId,
    origin: &Arc<Origin>,
) -> Result<Lease> {
    let new = NewSession { id, member: Arc::clone(&settings.member), ttl: settings.ttl };
    let sent = BootInstant::now();
    let opening = async {
        on_purpose("open");
        backend.open(&new).await
    };
    let opened = caught("open", opening).await.flatten();
    origin.meters.request("open", &opened);
    let granted = opened?;
    tracing::debug!(session = %new.id, ?granted, "session opened");
    // If an earlier call opened the session, a part of its lease has passed. The next heartbeat extends the lease to its full
    // length.
    let asked = backend.asked(new.id).map_or(sent, |asked| asked.min(sent));
    Ok(Lease::new(new.id, granted, asked, Arc::clone(origin)))
}

/// Why the keeper stopped renewing a session.
enum End {
    Lost(LossReason),
    Closed(Close),
}

/// Why a session is to be closed.
enum Close {
    /// Somebody called `stop` and waits for the answer.
    Asked(Stop),
    /// The last coordinator, lock and guard were dropped.
    Dropped,
}

struct Keeper {
    session: Arc<Session>,
    stops: mpsc::UnboundedReceiver<Stop>,
}

impl Keeper {
    async fn run(mut self) {
        // Dropped however this task ends, also with its runtime: then all guards are lost.
        let _closing = Closing(Arc::clone(&self.session));
        while let Some(lease) = self.session.lease_now_or_lost() {
            match self.keep(&lease).await {
                End::Closed(why) => return self.close(&lease, None, why).await,
                End::Lost(reason) => self.lose(&lease, reason),
            }
            if let Err((next, why)) = self.reopen(lease.id).await {
                return self.close(&lease, Some(next), why).await;
            }
        }
    }

    /// Renews the lease until the session is lost or is to be closed.
    async fn keep(&mut self, lease: &Arc<Lease>) -> End {
        let session = Arc::clone(&self.session);
        let interval = session.heartbeat_interval(lease.ttl);
        let mut delays = session.retry_delays(lease.ttl);
        let mut confirmed = ConfirmedHeartbeats::new(session.backend.proof_delay(), lease.opened);
        // The time of the next heartbeat is read from tokio's clock, which a test can pause. How far a heartbeat extends the
        // lease is computed with the clock that counts the time that the host is suspended.
        let mut next = Instant::now() + interval;
        loop {
            if let Err(end) = self.unless_over(lease, tokio::time::sleep_until(next)).await {
                return end;
            }
            session.note_thread();
            next = Instant::now() + interval;
            let sent = BootInstant::now();
            match self.unless_over(lease, heartbeat(&session, lease)).await {
                Err(end) => return end,
                Ok(Ok(())) => {
                    let answered = BootInstant::now();
                    next = next.max(Instant::now() + confirmed.pause(interval));
                    let is_late = sings(Canary::ReceiveTimeDeadline);
                    let sent = if is_late { answered } else { sent };
                    if !lease.extend(confirmed.confirm(sent, answered)) {
                        return End::Lost(LossReason::DeadlinePassed);
                    }
                    session.failures.clear();
                    session.tell(State::Connected);
                    delays = session.retry_delays(lease.ttl);
                }
                Ok(Err(error)) => {
                    if let Some(reason) = error.loss_reason() {
                        return End::Lost(reason);
                    }
                    tracing::debug!(%error, "heartbeat failed");
                    session.failures.note(&error);
                    session.tell(State::Suspended);
                    next = Instant::now() + delays.next_delay();
                }
            }
        }
    }

    /// Runs `work`, unless the session is lost or is to be closed before it is done.
    async fn unless_over<T>(
        &mut self,
        lease: &Lease,
        work: impl Future<Output = T>,
    ) -> Result<T, End> {
        let backend = &self.session.backend;
        tokio::select! {
            biased;
            why = close_wanted(&mut self.stops) => Err(End::Closed(why)),
            reason = lease.ended() => Err(End::Lost(reason)),
            () = deadline_passed(lease) => Err(End::Lost(LossReason::DeadlinePassed)),
            reason = backend.ended(lease.id) => Err(End::Lost(reason)),
            done = work => Ok(done),
        }
    }

    fn lose(&self, lease: &Lease, reason: LossReason) {
        lease.lose(reason);
        tracing::warn!(session = %lease.id, %reason, "session lost");
        self.session.phase.send_replace(Phase::Opening { last: lease.ttl });
        self.session.tell(State::Lost(reason));
    }

    /// Opens the next session. The error says that the session is to be closed before one was opened; it has the id of the last
    /// try.
    async fn reopen(&mut self, old: SessionId) -> Result<(), (SessionId, Close)> {
        let session = Arc::clone(&self.session);
        let settings = &session.settings;
        // Once the store is back, the coordinator must use it within two leases and five seconds (L5 in `docs/guarantees.md`), and
        // the store's own back-off between connections has to fit into this time as well.
        let longest = settings.max_backoff.min(settings.ttl);
        let mut delays = DecorrelatedJitter::new(settings.initial_backoff, longest);
        // All tries use one id. If a try opened the session and its answer was lost, the next try finds that session, and is not
        // refused because its member id is taken (S9 in `docs/guarantees.md`). If the store says that the session of this id is
        // over, the next try has a new id.
        let mut new = SessionId::random();
        let mut remains = vec![old];
        let mut taken = TakenId::new();
        loop {
            let tries = async {
                while let Some(&old) = remains.last() {
                    // The store may still hold the entries of the lost session. They would end with its lease; closing the
                    // session ends them sooner.
                    let closing =
                        session.attempt(Some(session.ttl()), "close", session.backend.close(old));
                    if closing.await.is_err() {
                        break;
                    }
                    remains.pop();
                }
                // This limit is longer than the one for a heartbeat: on some stores opening takes several steps, and no hold
                // depends on it. If the opening is given up too early, the next try finds the session, but much of its lease may be
                // over by then.
                let limit = session.ttl() / 6;
                let opening = open(&*session.backend, settings, new, &session.origin);
                timeout(limit, opening).await.unwrap_or_else(|_| {
                    let message = format!("no answer within {limit:?}");
                    let late = Err(Error::new(ErrorKind::Unavailable, "open", message));
                    session.origin.meters.request("open", &late);
                    late
                })
            };
            let opened = tokio::select! {
                biased;
                why = close_wanted(&mut self.stops) => return Err((new, why)),
                opened = tries => opened,
            };
            match opened {
                Ok(lease) => {
                    // Every session in `remains` is over, even if no `close` was confirmed: the new session has the same member
                    // id, and the store opens no session with a member id while another with the same member id lives.
                    session.failures.clear();
                    session.phase.send_replace(Phase::Open(Arc::new(lease)));
                    session.tell(State::Connected);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(%error, "no new session yet");
                    // For a recorder that came late, or that forgets what it was not told for a while.
                    session.show_state();
                    session.failures.note(&error);
                    taken.note(&error, 2 * session.ttl());
                    if error.loss_reason().is_some() {
                        // The store says that the session `new` is over. By the same answer, those that were pushed here by earlier
                        // tries are over too, so only the lost session and this one are still closed before the next try.
                        remains.truncate(1);
                        remains.push(std::mem::replace(&mut new, SessionId::random()));
                    }
                }
            }
            tokio::select! {
                biased;
                why = close_wanted(&mut self.stops) => return Err((new, why)),
                () = tokio::time::sleep(delays.next_delay()) => {}
            }
        }
    }

    /// Ends the session at the store, and also the one that was being opened, as far as time allows.
    async fn close(&mut self, lease: &Lease, opening: Option<SessionId>, why: Close) {
        if sings(Canary::ClosedBeforeTold) {
            let closing = self.session.backend.close(lease.id);
            drop(self.session.attempt(lease.ttl, "stop", closing).await);
        }
        // Invariant: guards are lost here before the store is told, so that none looks held when another process gets
        // its lock.
        let held = lease.close(LossReason::Closed);
        self.session.note_cut_off(lease.id, held);
        self.session.phase.send_replace(Phase::Closed(LossReason::Closed));
        self.session.end_observers();
        let limit = match why {
            Close::Asked(_) => self.session.stop_timeout(lease),
            Close::Dropped => DROP_TIMEOUT,
        };
        let failed = Failures::default();
        let closing = timeout(limit, async {
            // Both sessions are closed at once, because the store may not answer at all about the one that is lost.
            let closing = self.close_with_retries(lease, lease.id, &failed);
            match opening {
                Some(opening) => {
                    let opening = self.close_with_retries(lease, opening, &failed);
                    let (closed, opened) = tokio::join!(closing, opening);
                    both(opened, closed)
                }
                None => closing.await,
            }
        });
        let confirmed = closing.await.unwrap_or_else(|_| {
            let message = format!(
                "the store did not confirm within {limit:?}; the session ends with its lease"
            );
            let late = self.session.late("stop", &message, failed.last());
            Err(late.with_effect(Effect::Unknown))
        });
        self.session.tell(State::Closed);
        let _ = self.session.stopped.set(confirmed.clone());
        // From here on `Control::stop` finds the channel closed and returns at once what was set here, so no request is left
        // without an answer.
        self.stops.close();
        let mut asked = match why {
            Close::Asked(stop) => Some(stop),
            Close::Dropped => None,
        };
        while let Some(Stop(confirm)) = asked {
            let _ = confirm.send(confirmed.clone());
            asked = self.stops.try_recv().ok();
        }
    }

    /// Closes a session, again and again until it succeeds or fails for good; the failures are noted in `failed`.
    async fn close_with_retries(
        &self,
        lease: &Lease,
        id: SessionId,
        failed: &Failures,
    ) -> Result<()> {
        let mut delays = self.session.retry_delays(lease.ttl);
        let mut in_doubt = false;
        loop {
            let closing = self.session.backend.close(id);
            let error = match self.session.attempt(lease.ttl, "stop", closing).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // A try whose answer was lost may have ended the session.
            in_doubt |= error.effect() == Effect::Unknown;
            if !error.is_transient() {
                return Err(if in_doubt { error.with_effect(Effect::Unknown) } else { error });
            }
            failed.note(&error);
            tokio::time::sleep(delays.next_delay()).await;
        }
    }
}

/// The outcome of closing two sessions. Where one of them was ended, or may have been, the stop has done something.
fn both(one: Result<()>, other: Result<()>) -> Result<()> {
    let outcomes = [one, other];
    let did_nothing =
        |outcome: &Result<()>| outcome.as_ref().is_err_and(|error| error.effect() == Effect::None);
    let has_done_nothing = outcomes.iter().all(did_nothing);
    let failed = outcomes.into_iter().find_map(Result::err);
    failed.map_or(Ok(()), |error| {
        Err(if has_done_nothing { error } else { error.with_effect(Effect::Unknown) })
    })
}

/// Resolves when the session is to be closed, with the reason.
async fn close_wanted(stops: &mut mpsc::UnboundedReceiver<Stop>) -> Close {
    stops.recv().await.map_or(Close::Dropped, Close::Asked)
}

async fn heartbeat(session: &Session, lease: &Lease) -> Result<()> {
    let held = match session.backend.characteristics().loss_detection {
        LossDetection::Heartbeat => lease.held(),
        LossDetection::Watch => Vec::new(),
    };
    // Each loss is reported as soon as the store finds it, even if the rest of the answer comes late or is an error.
    let gone = |id: &EntryId| lease.entry_lost(id);
    let beat = session.origin.meters.beat();
    let renewed =
        session.attempt(lease.ttl, "renew", session.backend.renew(lease.id, &held, &gone)).await;
    beat.ended(&renewed);
    renewed
}

async fn deadline_passed(lease: &Lease) {
    // A heartbeat may move the deadline during the sleep: so the clock is compared with it again.
    while lease.loss_reason().is_none() {
        sleep_until(lease.deadline()).await;
    }
}

/// Marks the session as closed and its guards as lost when the keeper ends without having done so.
struct Closing(Arc<Session>);

impl Drop for Closing {
    fn drop(&mut self) {
        match self.0.closed() {
            // The runtime has ended during a stop, unless the stop has set its answer.
            Some(LossReason::Closed) => {
                let _ = self.0.stopped.set(unconfirmed());
            }
            Some(_) => {}
            None => self.0.runtime_ended(),
        }
        self.0.end_observers();
        self.0.tell(State::Closed);
    }
}

impl Session {
    /// Marks the session as closed, and its guards as lost, because its runtime ended before anybody stopped it.
    fn runtime_ended(&self) {
        let ended = LossReason::RuntimeEnded;
        let lease = self.lease_now_or_lost();
        // As in `Keeper::close`: whoever sees that the session is closed finds its guards lost, and what was cut off.
        if let Some(lease) = &lease {
            let held = lease.close(ended);
            self.note_cut_off(lease.id, held);
        }
        self.phase.send_replace(Phase::Closed(ended));
        if let Some(lease) = lease {
            self.backend.close_now(lease.id);
        }
    }

    fn lease_now_or_lost(&self) -> Option<Arc<Lease>> {
        match &*self.phase.borrow() {
            Phase::Open(lease) => Some(Arc::clone(lease)),
            Phase::Opening { .. } | Phase::Closed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x1_a_stop_that_has_ended_one_of_two_sessions_is_told_of() {
        let failed =
            |effect| Err(Error::new(ErrorKind::Auth, "stop", "it is refused").with_effect(effect));
        let nothing = || failed(Effect::None);
        let told = |one, other| both(one, other).expect_err("one has failed").effect();
        assert!(both(Ok(()), Ok(())).is_ok());
        assert_eq!(told(nothing(), nothing()), Effect::None);
        for done in [Ok(()), failed(Effect::Unknown), failed(Effect::Applied)] {
            assert_eq!(told(nothing(), done.clone()), Effect::Unknown);
            assert_eq!(told(done, nothing()), Effect::Unknown);
        }
    }
}
