//! A coordinator's session: what recipes ask of it.
//!
//! One task, the [`keeper`], opens a session at the store, renews its [`lease`](Lease), tells when that is lost, and
//! opens the next session. Every call to the store that may take time runs on the keeper's runtime, so that neither a
//! caller who drops its future nor a program whose executor is blocked can interrupt it. The caller's future only
//! waits for the answer.

pub(crate) mod keeper;
mod lease;
mod observer;
mod runtime;
mod state;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::backend::{EntryRef, Store, Write};
use crate::canary::{Canary, sings};
use crate::config::Settings;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::retry::DecorrelatedJitter;
use crate::time::BootInstant;
use crate::world;

use self::observer::Observers;
pub(crate) use self::observer::{View, Views};
use lease::Proofs;
pub(crate) use lease::{Hold, Lease};
pub(crate) use runtime::Runtime;
pub(crate) use state::States;
pub use state::{State, StateWatch};

/// The longest that closing may take, however long the lease is.
const LONGEST_STOP: Duration = Duration::from_secs(5);
/// The longest delay between two tries while the session can still be saved.
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// The longest that a waiter relies on notifications before it asks the store itself.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);

/// Whether a session is open at the moment.
#[derive(Clone)]
enum Phase {
    /// The lease before was lost.
    Opening {
        /// What the store had granted.
        last: Option<Duration>,
    },
    Open(Arc<Lease>),
    Closed,
}

/// Whether the store may have carried out an earlier try, the answer to which was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt(bool);

/// What became of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The value has this version now, or was removed.
    Yes(u64),
    /// The value was not the expected one, so nothing was written.
    No,
    /// The value is not the expected one any more. Ours may have been written, and then replaced by another.
    Unknown,
}

/// The part of a coordinator that its guards and tasks share.
pub(crate) struct Session {
    pub(crate) backend: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) states: States,
    phase: watch::Sender<Phase>,
    observers: Observers,
    handle: Handle,
    /// The process that connected. A forked child has a copy of its memory, but neither its threads nor its locks.
    pid: u32,
}

impl Session {
    fn new(backend: Arc<dyn Store>, settings: Settings, lease: Arc<Lease>) -> Self {
        Self {
            backend,
            settings,
            states: States::new(State::Connected),
            phase: watch::Sender::new(Phase::Open(lease)),
            observers: Observers::default(),
            handle: Handle::current(),
            pid: std::process::id(),
        }
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Refuses to work in a forked child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let message =
            "this is a forked child; locks stay with the parent, connect anew after the fork";
        Err(Error::new(ErrorKind::Closed, operation, message))
    }

    /// [`check_process`](Self::check_process), and refuses to work when the coordinator was stopped.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        self.check_process(operation)?;
        match &*self.phase.borrow() {
            Phase::Closed => Err(Error::lost(operation, LossReason::Closed)),
            Phase::Opening { .. } | Phase::Open(_) => Ok(()),
        }
    }

    /// The lease, if a session is open and its lease is not lost at this moment.
    pub(crate) fn lease_now(&self) -> Option<Arc<Lease>> {
        match &*self.phase.borrow() {
            Phase::Open(lease) if lease.lost().is_none() => Some(Arc::clone(lease)),
            _ => None,
        }
    }

    /// Waits for an open lease.
    pub(crate) async fn lease(&self, operation: &'static str) -> Result<Arc<Lease>> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Open(lease) if lease.lost().is_none() => return Ok(Arc::clone(lease)),
                Phase::Closed => return Err(Error::lost(operation, LossReason::Closed)),
                Phase::Open(_) | Phase::Opening { .. } => {}
            }
            if phase.changed().await.is_err() {
                return Err(Error::lost(operation, LossReason::Closed));
            }
        }
    }

    /// Whether the last heartbeat was answered.
    pub(crate) fn is_connected(&self) -> bool {
        self.states.current() == State::Connected
    }

    /// Runs a task on the session's runtime, which goes on when the caller's executor is blocked or has ended.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        world::spawn(&self.handle, task)
    }

    /// The lease as the store granted it, also when it was the last one; the one asked for on stores that grant none.
    pub(crate) fn ttl(&self) -> Duration {
        match &*self.phase.borrow() {
            Phase::Open(lease) => lease.ttl,
            Phase::Opening { last } => *last,
            Phase::Closed => None,
        }
        .unwrap_or(self.settings.ttl)
    }

    /// How long one call to the store may take if it is not about an entry of ours.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.settings.call_timeout(self.ttl())
    }

    /// How long a waiter relies on notifications before it asks the store itself.
    pub(crate) fn recheck_interval(&self, lease: &Lease) -> Duration {
        if sings(Canary::NoRecheck) {
            return Duration::from_secs(365 * 24 * 60 * 60);
        }
        lease.ttl.unwrap_or(LONGEST_RECHECK).min(LONGEST_RECHECK)
    }

    fn heartbeat_interval(&self, ttl: Option<Duration>) -> Duration {
        let heartbeat = self.settings.heartbeat;
        // On a store where the answer to a heartbeat confirms only the heartbeat before it, two have to fit into the
        // time of one.
        let share = if self.backend.proof_delay().is_zero() { 3 } else { 6 };
        ttl.map_or(heartbeat, |ttl| heartbeat.min(ttl / share))
    }

    fn stop_timeout(&self, lease: &Lease) -> Duration {
        lease.ttl.unwrap_or(LONGEST_STOP).min(LONGEST_STOP)
    }

    /// Back-off between tries while the session can still be saved.
    pub(crate) fn retry_delays(&self, ttl: Option<Duration>) -> DecorrelatedJitter {
        let longest =
            self.settings.max_backoff.min(self.heartbeat_interval(ttl)).min(LONGEST_RETRY);
        DecorrelatedJitter::new(self.settings.initial_backoff, longest)
    }

    /// One call to the store, bounded in time.
    pub(crate) async fn attempt<T>(
        &self,
        ttl: Option<Duration>,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = match ttl {
            Some(ttl) => self.settings.call_timeout(ttl),
            None => self.settings.heartbeat.max(LONGEST_RETRY),
        };
        let sent = sings(Canary::DeadlineFromReads).then(BootInstant::now);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => {
                if let (Some(sent), Some(lease), true) = (sent, self.lease_now(), answer.is_ok()) {
                    lease.extend(sent);
                }
                answer
            }
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                operation,
                format!("no answer within {limit:?}"),
            )
            .with_effect(Effect::Unknown)),
        }
        .map_err(|error| error.on_backend(self.backend.scheme()))
    }

    /// Repeats a call until its outcome is known or the session is over.
    ///
    /// When an answer is lost, the call may have taken effect, and nothing else may be done under this session until
    /// it is known whether it has (S9). The call must be idempotent.
    pub(crate) async fn persist<T, C>(
        &self,
        lease: &Lease,
        operation: &'static str,
        call: impl Fn() -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<T>>,
    {
        let tries = (|| self.attempt(lease.ttl, operation, call()))
            .retry(self.retry_delays(lease.ttl))
            .sleep(tokio::time::sleep)
            .when(|error| {
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Refused | ErrorKind::Dns)
            });
        let outcome = tokio::select! {
            biased;
            reason = lease.ended() => Err(Error::lost(operation, reason)),
            outcome = tries => outcome,
        };
        if let Err(error) = &outcome
            && let Some(reason) = error.loss_reason()
        {
            lease.lose(reason);
        }
        outcome
    }

    /// Repeats a call that is not about an entry of ours, for as long as a caller may be kept waiting.
    ///
    /// Fails with the last error. Its effect is `Unknown` if the store may have carried out one of the tries.
    pub(crate) async fn insist<T, C>(
        &self,
        operation: &'static str,
        call: impl Fn() -> C,
    ) -> Result<(T, Doubt)>
    where
        C: Future<Output = Result<T>>,
    {
        let ttl = self.ttl();
        let limit = Instant::now() + ttl.min(LONGEST_STOP);
        let mut delays = self.retry_delays(Some(ttl));
        let mut doubt = Doubt(false);
        loop {
            let error = match self.attempt(Some(ttl), operation, call()).await {
                Ok(answer) => return Ok((answer, doubt)),
                Err(error) => error,
            };
            doubt.0 |= error.effect() == Effect::Unknown;
            let next = Instant::now() + delays.next_delay();
            let may_pass = matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Refused | ErrorKind::Dns
            );
            if !may_pass || next > limit {
                let effect = if doubt.0 { Effect::Unknown } else { error.effect() };
                return Err(error.with_effect(effect));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Writes a queue's value if it is as expected.
    pub(crate) async fn write(&self, operation: &'static str, write: &Write) -> Result<Written> {
        let (version, doubt) = self.insist(operation, || self.backend.write(write)).await?;
        Ok(match version {
            Some(version) => Written::Yes(version),
            None if doubt.0 => Written::Unknown,
            None => Written::No,
        })
    }

    /// The names of the queues of this kind that have a value.
    pub(crate) async fn names(
        self: &Arc<Self>,
        operation: &'static str,
        kind: &'static str,
    ) -> Result<Vec<String>> {
        let session = Arc::clone(self);
        let listing =
            async move { session.insist(operation, || session.backend.names(kind)).await };
        self.listed(operation, listing).await
    }

    /// The names of the queues of this kind that have a live entry.
    pub(crate) async fn queues(
        self: &Arc<Self>,
        operation: &'static str,
        kind: &'static str,
    ) -> Result<Vec<String>> {
        let session = Arc::clone(self);
        let listing =
            async move { session.insist(operation, || session.backend.queues(kind)).await };
        self.listed(operation, listing).await
    }

    async fn listed(
        self: &Arc<Self>,
        operation: &'static str,
        listing: impl Future<Output = Result<(Vec<String>, Doubt)>> + Send + 'static,
    ) -> Result<Vec<String>> {
        self.check_open(operation)?;
        let listed = self.spawn(async move { listing.await.map(|(names, _)| names) });
        listed.await.unwrap_or_else(|_| Err(Error::lost(operation, LossReason::Closed)))
    }

    /// Removes one entry: tries until the store has confirmed it, or until the session has ended, which removes the
    /// entry too.
    async fn leave(&self, lease: &Lease, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let delays = DecorrelatedJitter::new(self.settings.initial_backoff, LONGEST_RETRY);
        let tries = (|| self.attempt(lease.ttl, "release", self.backend.leave(entry, seq)))
            .retry(delays)
            .sleep(tokio::time::sleep)
            .when(|error| {
                error.loss_reason().is_none() && !sings(Canary::OwnerForgottenBeforeRelease)
            });
        tokio::select! {
            biased;
            // The entry was held when the release began, and the store may have carried it out before the session
            // ended.
            reason = lease.ended() => {
                Err(Error::lost("release", reason).with_effect(Effect::Unknown))
            }
            outcome = tries => outcome,
        }
    }

    /// Removes one entry, and waits for the store to confirm it, but no longer than `stop_timeout`.
    ///
    /// The removal goes on in the background when the future is dropped, and when the time is over.
    pub(crate) async fn leave_confirmed(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        entry: &EntryRef,
        seq: Option<u64>,
    ) -> Result<()> {
        if let Some(Ok(())) = self.backend.leave_now(entry, seq) {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        let (session, lease, entry) = (Arc::clone(self), Arc::clone(lease), entry.clone());
        self.spawn(async move {
            let leaving = session.leave(&lease, &entry, seq);
            tokio::pin!(leaving);
            let limit = session.stop_timeout(&lease);
            match tokio::time::timeout(limit, &mut leaving).await {
                Ok(outcome) => drop(answer.send(outcome)),
                Err(_) => {
                    let message = format!("the store did not confirm within {limit:?}");
                    let error = Error::new(ErrorKind::Unavailable, "release", message);
                    drop(answer.send(Err(error.with_effect(Effect::Unknown))));
                    drop(leaving.await);
                }
            }
        });
        answered.await.unwrap_or_else(|_| Err(Error::lost("release", LossReason::Closed)))
    }

    /// [`leave`](Self::leave) in the background. It may be called in `Drop`, on any thread, and in any state of the
    /// session.
    pub(crate) fn leave_in_background(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        entry: EntryRef,
        seq: Option<u64>,
    ) {
        if !self.is_own_process() || lease.lost().is_some() {
            return;
        }
        if let Some(Ok(())) = self.backend.leave_now(&entry, seq) {
            return;
        }
        let (session, lease) = (Arc::clone(self), Arc::clone(lease));
        self.spawn(async move {
            if let Err(error) = session.leave(&lease, &entry, seq).await {
                tracing::debug!(%error, "entry ends with its session");
            }
        });
    }
}
