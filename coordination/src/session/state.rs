//! The states of a coordinator, reported to every subscriber in order.

use std::fmt;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::sync::mpsc;

use crate::env::Process;
use crate::error::LossReason;

/// The state of a coordinator's session.
///
/// # Examples
///
/// ```
/// use coordination::State;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // A health check: locks are good until their deadline while it is suspended.
/// let is_ready = match coordinator.state().current() {
///     State::Connected | State::Suspended => true,
///     State::Lost(reason) => {
///         eprintln!("the session is opened anew: {reason}");
///         false
///     }
///     _ => false,
/// };
/// assert!(is_ready);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The session is alive and its last heartbeat was confirmed.
    Connected,
    /// A heartbeat failed or is overdue. Guards stay valid until the deadline.
    Suspended,
    /// The session was lost, and every lock with it. A new session is being opened.
    Lost(LossReason),
    /// The coordinator was stopped or dropped; this is the last state.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Suspended => f.write_str("suspended"),
            Self::Lost(reason) => write!(f, "lost ({reason})"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// Follows the [`State`] of a coordinator: reports every change, in order. Made by
/// [`Coordinator::state`](crate::Coordinator::state).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::{Coordinator, State};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let mut state = coordinator.state();
/// assert_eq!(state.current(), State::Connected);
/// coordinator.stop().await?;
/// assert_eq!(state.changed().await, Some(State::Closed));
/// assert_eq!(state.changed().await, None);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StateWatch {
    current: State,
    changes: mpsc::UnboundedReceiver<State>,
    process: Process,
}

impl StateWatch {
    /// The watch of a forked child, where the session counts as closed.
    pub(crate) fn of_a_child() -> Self {
        Self::new(State::Closed, mpsc::unbounded_channel().1)
    }

    fn new(current: State, changes: mpsc::UnboundedReceiver<State>) -> Self {
        Self { current, changes, process: Process::this() }
    }

    /// The state after the last change that [`changed`](Self::changed) returned; at first, the state at the
    /// time of subscribing.
    pub fn current(&self) -> State {
        if self.process.is_this() { self.current } else { State::Closed }
    }

    /// Waits for the next change and returns the new state; `None` after [`State::Closed`].
    ///
    /// # Cancel safety
    ///
    /// No change is missed when the future is dropped.
    pub async fn changed(&mut self) -> Option<State> {
        if !self.process.is_this() {
            return None;
        }
        self.current = self.changes.recv().await?;
        Some(self.current)
    }
}

/// Tells the subscribers of a coordinator about its states; shared by the session's tasks.
#[derive(Clone, Debug)]
pub(crate) struct States(Arc<Mutex<Subscribers>>);

#[derive(Debug)]
struct Subscribers {
    current: State,
    // An unbounded channel stays small: the state changes at most a few times in a heartbeat interval.
    senders: Vec<mpsc::UnboundedSender<State>>,
}

impl Subscribers {
    fn add(&mut self, sender: mpsc::UnboundedSender<State>) {
        // A subscriber that only asked for the current state is gone by now. When the list is full, such subscribers are removed
        // before the list grows: so a subscription costs the same however many came and went.
        if self.senders.len() == self.senders.capacity() {
            self.senders.retain(|sender| !sender.is_closed());
            self.senders.reserve(self.senders.len() + 1);
        }
        self.senders.push(sender);
    }
}

impl States {
    pub(crate) fn new(current: State) -> Self {
        Self(Arc::new(Mutex::new(Subscribers { current, senders: Vec::new() })))
    }

    pub(crate) fn current(&self) -> State {
        self.lock().current
    }

    pub(crate) fn subscribe(&self) -> StateWatch {
        let (sender, changes) = mpsc::unbounded_channel();
        let mut subscribers = self.lock();
        if subscribers.current != State::Closed {
            subscribers.add(sender);
        }
        StateWatch::new(subscribers.current, changes)
    }

    /// Tells the subscribers of a state, unless it is the current one, or the current one is `Closed`, which is the last.
    pub(crate) fn tell(&self, state: State) {
        let mut subscribers = self.lock();
        if subscribers.current == state || subscribers.current == State::Closed {
            return;
        }
        subscribers.current = state;
        subscribers.senders.retain(|sender| sender.send(state).is_ok());
        if state == State::Closed {
            subscribers.senders.clear();
        }
        // A service's own code may run when an event is logged, and ask for the state.
        drop(subscribers);
        tracing::info!(?state, "coordinator state");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Subscribers> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Asks for the state whenever something is logged.
    struct Asking(States);

    impl Subscriber for Asking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            assert_eq!(self.0.current(), State::Suspended, "it is told before it is logged");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_log_that_asks_for_the_state_is_answered() {
        let (told, is_told) = channel();
        thread::spawn(move || {
            let states = States::new(State::Connected);
            let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
            tracing::subscriber::with_default(Asking(states.clone()), || {
                states.tell(State::Suspended);
            });
            told.send(states.current())
        });
        assert_eq!(is_told.recv_timeout(Duration::from_secs(5)), Ok(State::Suspended));
    }

    #[tokio::test]
    async fn a_million_looks_leave_nothing() {
        let states = States::new(State::Connected);
        let mut kept: Vec<_> = (0..10).map(|_| states.subscribe()).collect();
        for _ in 0..1_000_000 {
            assert_eq!(states.subscribe().current(), State::Connected);
        }
        let left = states.lock().senders.capacity();
        assert!(left <= 4 * kept.len(), "{left} subscribers are kept");
        states.tell(State::Suspended);
        for watch in &mut kept {
            assert_eq!(watch.changed().await, Some(State::Suspended));
        }
    }

    #[tokio::test]
    async fn every_change_arrives_in_order_and_closed_is_last() {
        let states = States::new(State::Connected);
        let mut early = states.subscribe();
        let lost = State::Lost(LossReason::DeadlinePassed);
        for state in [
            State::Suspended,
            State::Suspended,
            State::Connected,
            lost,
            State::Closed,
            State::Connected,
        ] {
            states.tell(state);
        }
        let mut late = states.subscribe();
        let mut seen = Vec::new();
        while let Some(state) = early.changed().await {
            seen.push(state);
        }
        assert_eq!(seen, [State::Suspended, State::Connected, lost, State::Closed]);
        assert_eq!((late.current(), late.changed().await), (State::Closed, None));
    }
}
