//! A coordinator's session, as recipes use it.
//!
//! One task, the [`keeper`], opens a session at the store, renews its [`lease`](Lease), reports when the lease is lost, and opens
//! the next session. Every call to the store that may take time runs on the keeper's runtime, so that neither a caller who drops
//! its future nor a program whose executor is blocked can interrupt the call. The caller's future only waits for the answer.

mod calls;
mod drain;
mod failures;
pub(crate) mod keeper;
mod lease;
mod line;
#[cfg(all(test, coordination_internals, feature = "memory"))]
pub(crate) mod logged;
mod looks;
mod observer;
mod runtime;
mod state;
mod stopping;

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinError;

use crate::backend::{EntryId, Store};
use crate::canary::{Canary, sings};
use crate::characteristics::LossDetection;
use crate::config::Settings;
use crate::env::{self, Process};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::events::{About, Origin};
use crate::key::QueueKey;
use crate::metrics::SessionGauge;
use crate::panics;
use crate::retry::DecorrelatedJitter;

pub(crate) use self::calls::{Having, Written, is_refusal, may_pass};
pub use self::drain::CutOff;
use self::drain::Drain;
pub(crate) use self::drain::Purpose;
use self::failures::Failures;
#[cfg(test)]
pub(crate) use self::observer::Came;
use self::observer::Observers;
pub(crate) use self::observer::{Sight, View, Views};
use lease::ConfirmedHeartbeats;
pub(crate) use lease::{Hold, Lease};
pub(crate) use runtime::Runtime;
pub(crate) use state::States;
pub use state::{State, StateWatch};
pub(crate) use stopping::HeldBeside;

/// The longest time from the store's notification that something is gone until its holder learns of that.
const LOSS_TOLD: Duration = Duration::from_millis(50);
/// The longest that closing may take, however long the lease is.
const LONGEST_STOP: Duration = Duration::from_secs(5);
/// The longest delay between two tries while the session can still be saved.
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// The longest that a waiter relies on notifications before it asks the store itself.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);

/// The shares of the longest interval after which each waiter asks the store itself.
const RECHECKS: RangeInclusive<f64> = 0.7..=1.0;

/// Whether a session is open at the moment.
#[derive(Clone)]
enum Phase {
    /// The last lease was lost, and the next session is being opened.
    Opening {
        /// The lease that the store granted last.
        last: Option<Duration>,
    },
    Open(Arc<Lease>),
    Closed(LossReason),
}

/// The part of a coordinator that its guards and tasks share.
pub(crate) struct Session {
    pub(crate) backend: Arc<dyn Store>,
    pub(crate) settings: Settings,
    /// What events say of this session, and of the next ones.
    origin: Arc<Origin>,
    pub(crate) states: States,
    gauge: SessionGauge,
    phase: watch::Sender<Phase>,
    observers: Observers,
    /// The failures of heartbeats, and of opening the next session.
    failures: Failures,
    drain: Drain,
    /// What the first stop was told, or would have been; never set if nobody has stopped the session.
    stopped: OnceLock<Result<()>>,
    handle: Handle,
    /// The thread on which the session's runtime was last seen, if the runtime has only one thread at a time: different threads
    /// may run it, one after the other.
    only_thread: Option<Mutex<ThreadId>>,
    /// The process that connected. In a fork of it the session must not be used.
    process: Process,
}

impl Session {
    fn new(backend: Arc<dyn Store>, settings: Settings, lease: Arc<Lease>) -> Self {
        let gauge = SessionGauge::default();
        gauge.show(&lease.origin.meters, State::Connected);
        Self {
            backend,
            settings,
            origin: Arc::clone(&lease.origin),
            states: States::new(State::Connected),
            gauge,
            phase: watch::Sender::new(Phase::Open(lease)),
            observers: Observers::default(),
            failures: Failures::default(),
            drain: Drain::default(),
            stopped: OnceLock::new(),
            only_thread: runtime::only_thread().map(Mutex::new),
            handle: Handle::current(),
            process: Process::this(),
        }
    }

    /// What log events say of the lock, or other thing, with this name.
    pub(crate) fn about<'a>(&'a self, key: &'a QueueKey) -> About<'a> {
        About { origin: &self.origin, key }
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process.is_this()
    }

    /// Fails in a forked child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let message =
            "this is a forked child; locks stay with the parent, connect anew after the fork";
        Err(Error::new(ErrorKind::Closed, operation, message))
    }

    /// Fails if this is a blocking call, on the only thread that could run the tasks for which the call waits.
    pub(crate) fn check_thread(&self, operation: &'static str) -> Result<()> {
        let is_here = |handle: Handle| handle.id() == self.handle.id();
        let waits_for_itself = || {
            Handle::try_current().is_ok_and(is_here)
                && self.only_thread().is_some_and(|thread| *thread == thread::current().id())
        };
        if !(env::blocking::is_blocking() && waits_for_itself()) {
            return Ok(());
        }
        let message = "this blocking call would wait for itself, on the only thread of the runtime on which the \
                       session lives; await the async call, or make this one in `spawn_blocking`";
        Err(Error::new(ErrorKind::Unsupported, operation, message))
    }

    fn only_thread(&self) -> Option<MutexGuard<'_, ThreadId>> {
        let thread = self.only_thread.as_ref()?;
        Some(thread.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes which thread runs the session's tasks; called within one of them.
    fn note_thread(&self) {
        if let Some(mut thread) = self.only_thread() {
            *thread = thread::current().id();
        }
    }

    /// Fails in a forked child, in a blocking call that would wait for itself, and after the coordinator was stopped.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        self.check_process(operation)?;
        self.check_thread(operation)?;
        self.closed().map_or(Ok(()), |reason| Err(Error::lost(operation, reason)))
    }

    /// Why the coordinator has ended; `None` while it has not.
    fn closed(&self) -> Option<LossReason> {
        match &*self.phase.borrow() {
            Phase::Closed(reason) => Some(*reason),
            Phase::Opening { .. } | Phase::Open(_) => None,
        }
    }

    /// The lease, if a session is open and its lease is not lost at this moment.
    pub(crate) fn lease_now(&self) -> Option<Arc<Lease>> {
        match &*self.phase.borrow() {
            Phase::Open(lease) if lease.loss_reason().is_none() => Some(Arc::clone(lease)),
            _ => None,
        }
    }

    /// Waits for an open lease.
    pub(crate) async fn lease(&self, operation: &'static str) -> Result<Arc<Lease>> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Open(lease) if lease.loss_reason().is_none() => {
                    return Ok(Arc::clone(lease));
                }
                Phase::Closed(reason) => return Err(Error::lost(operation, *reason)),
                Phase::Open(_) | Phase::Opening { .. } => {}
            }
            if phase.changed().await.is_err() {
                return Err(self.ended(operation));
            }
        }
    }

    /// The error of a call whose task has ended without an answer.
    pub(crate) fn ended(&self, operation: &'static str) -> Error {
        Error::lost(operation, self.closed().unwrap_or(LossReason::RuntimeEnded))
    }

    /// The error of a call whose task has ended, with the reason that tokio gives.
    pub(crate) fn unanswered(&self, operation: &'static str, ended: JoinError) -> Error {
        panics::of_task(operation, ended).unwrap_or_else(|| self.ended(operation))
    }

    /// Tells the subscribers of a state, and shows it in the gauge of sessions.
    fn tell(&self, state: State) {
        self.states.tell(state);
        self.gauge.show(&self.origin.meters, state);
    }

    /// Shows the state in the gauge of sessions once more.
    fn show_state(&self) {
        self.gauge.show(&self.origin.meters, self.states.current());
    }

    /// The state as seen by this process: in a forked child the session is closed.
    pub(crate) fn state(&self) -> State {
        if self.is_own_process() { self.states.current() } else { State::Closed }
    }

    /// Subscribes to the states as seen by this process.
    pub(crate) fn watch_state(&self) -> StateWatch {
        if self.is_own_process() { self.states.subscribe() } else { StateWatch::of_a_child() }
    }

    /// Whether the last heartbeat was answered.
    pub(crate) fn is_connected(&self) -> bool {
        self.state() == State::Connected
    }

    /// The error of a call whose time is over while the store did not answer, or refused. `said`: the failure of the call itself,
    /// if it had one; the failures of the session are considered too.
    pub(crate) fn late(
        &self,
        operation: &'static str,
        message: &str,
        said: Option<Error>,
    ) -> Error {
        failures::late(operation, message, said.into_iter().chain(self.failures.last()))
    }

    /// Runs a task on the session's runtime, where it goes on even if the caller's executor is blocked or has ended.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        env::spawn(&self.handle, task)
    }

    /// The lease that the store granted, or granted last; the one that was asked for if the store grants none.
    pub(crate) fn ttl(&self) -> Duration {
        match &*self.phase.borrow() {
            Phase::Open(lease) => lease.ttl,
            Phase::Opening { last } => *last,
            Phase::Closed(_) => None,
        }
        .unwrap_or(self.settings.ttl)
    }

    /// How long one call to the store may take if it is not about an entry of ours.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.settings.call_timeout(self.ttl())
    }

    /// How long a waiter for an entry, or the holder of one, relies on notifications before it asks the store itself.
    pub(crate) fn recheck_interval(&self, lease: &Lease, entry: &EntryId) -> Duration {
        self.interval_of(lease, &RECHECKS, entry)
    }

    /// The interval of whoever has this id, in these shares of the longest that this lease allows.
    fn interval_of(&self, lease: &Lease, shares: &RangeInclusive<f64>, id: &impl Hash) -> Duration {
        if sings(Canary::NoRecheck) {
            return Duration::from_secs(365 * 24 * 60 * 60);
        }
        let longest = lease.ttl.unwrap_or(LONGEST_RECHECK).min(LONGEST_RECHECK);
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        own_interval(longest, shares, hasher.finish())
    }

    fn heartbeat_interval(&self, ttl: Option<Duration>) -> Duration {
        let heartbeat = self.settings.heartbeat;
        // On a store where a heartbeat's answer confirms only the heartbeat before it, two heartbeats have to fit into the time
        // of one.
        let share = if self.backend.proof_delay().is_zero() { 3 } else { 6 };
        ttl.map_or(heartbeat, |ttl| heartbeat.min(ttl / share))
    }

    /// How late a holder may be told that its entry or session was taken away.
    pub(crate) fn loss_delay(&self) -> Duration {
        match self.backend.characteristics().loss_detection {
            LossDetection::Watch => self.backend.reconnect_delay() + LOSS_TOLD,
            LossDetection::Heartbeat => {
                let ttl = self.ttl();
                self.heartbeat_interval(Some(ttl)) + self.settings.call_timeout(ttl) + LOSS_TOLD
            }
        }
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
}

/// The interval of the entry or the session with this hash, within these shares of the longest. With one interval for all, thousands
/// of entries that were entered together would be read from the store at the same moments, for ever.
fn own_interval(longest: Duration, shares: &RangeInclusive<f64>, number: u64) -> Duration {
    let difference = shares.end() - shares.start();
    longest.mul_f64(shares.end() - difference * (number as f64 / u64::MAX as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_what_was_entered_together_are_spread() {
        const COUNT: u64 = 10_000;
        let longest = Duration::from_secs(5);
        let mut looks = [0; 120];
        for number in (0..COUNT).map(|nth| nth * (u64::MAX / COUNT)) {
            let interval = own_interval(longest, &RECHECKS, number);
            assert!(interval >= longest * 7 / 10 && interval <= longest, "{interval:?}");
            for nth in 1..60_000 / interval.as_millis() {
                looks[(interval.as_millis() * nth) as usize / 500] += 1;
            }
        }
        // The first reads of the entries come within 1.5 s, and the later ones are spread almost evenly.
        assert!(looks.iter().max() <= Some(&(COUNT / 3 * 11 / 10)), "{looks:?}");
        let even = COUNT / 10 * 118 / 100;
        assert!(looks[60..108].iter().all(|count| count.abs_diff(even) < even / 3), "{looks:?}");
    }
}
