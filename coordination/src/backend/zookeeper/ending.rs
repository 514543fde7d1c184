//! How a session has ended: a server has said that the session is over, or the client crate has not heard from any server for too
//! long.
//!
//! The client crate reports both as `Expired`. The crate gives the session up when it has not heard from a server for 7/5 of the
//! lease (`session_expired_timeout` in 0.11.2). Suppose that a call was answered, and that `Expired` is seen here less than one
//! lease after this call was sent. Then the crate cannot have given up, so a server must have said it. This holds even if this
//! process was paused at any moment: a pause only makes this process see `Expired` later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use zookeeper_client::{SessionState, StateWatcher};

use crate::error::LossReason;
use crate::time::BootInstant;

/// What has ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A server has confirmed that this client ended the session.
    Closed,
    /// A server has said that there is no such session.
    Expired,
    /// The client crate has given the session up, and no server has said that it is over.
    GivenUp,
}

impl End {
    /// Whether this end is known from a server. If so, the session is certainly over at the servers too.
    pub(super) fn is_word(self) -> bool {
        self != Self::GivenUp
    }

    /// The loss to report for the entries that are held in the session. `None`: nothing is reported, because the session may still
    /// live at the servers; the holders can rely on their entries until the deadline.
    pub(super) fn loss(self) -> Option<LossReason> {
        match self {
            Self::Closed => Some(LossReason::ConnectionLost),
            Self::Expired => Some(LossReason::ExpiredByServer),
            Self::GivenUp => None,
        }
    }
}

/// Finds out how one session has ended.
pub(super) struct Ending {
    ttl: Duration,
    /// When the newest call that a server has answered was sent, in nanoseconds of [`BootInstant`].
    answered: AtomicU64,
    end: watch::Sender<Option<End>>,
}

impl Ending {
    /// The initial state for a session with the lease `ttl`. `asked`: when the request that opened it was sent.
    pub(super) fn new(ttl: Duration, asked: BootInstant) -> Self {
        let answered = AtomicU64::new(asked.as_nanos());
        Self { ttl, answered, end: watch::Sender::new(None) }
    }

    /// Notes that a server has answered a call, which was sent at the moment `sent`.
    pub(super) fn answered(&self, sent: BootInstant) {
        self.answered.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Waits until the session has ended, and notes how it has ended.
    pub(super) async fn follow(self: Arc<Self>, mut states: StateWatcher) {
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
        self.end.send_replace(Some(self.end_of(state, BootInstant::now())));
    }

    /// Resolves when the session has ended, and returns how.
    pub(super) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        // This struct owns the sender, so the sender still exists, and `wait_for` cannot fail.
        ended.ok().and_then(|end| *end).unwrap_or(End::GivenUp)
    }

    /// How the session has ended, if it was seen in the state `state` at the moment `seen`.
    fn end_of(&self, state: SessionState, seen: BootInstant) -> End {
        let answered = BootInstant::from_nanos(self.answered.load(Ordering::SeqCst));
        match state {
            SessionState::Closed => End::Closed,
            SessionState::Expired if seen.saturating_duration_since(answered) < self.ttl => {
                End::Expired
            }
            _ => End::GivenUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_expired_by_a_servers_word_within_its_lease_only() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let ending = Ending::new(Duration::from_secs(10), at(1_000));
        let end = |state, seen| ending.end_of(state, at(seen));
        assert_eq!(end(SessionState::Expired, 10_999), End::Expired);
        assert_eq!(end(SessionState::Expired, 11_000), End::GivenUp);
        assert_eq!(end(SessionState::Closed, 11_000), End::Closed);
        assert_eq!(end(SessionState::AuthFailed, 2_000), End::GivenUp);
        ending.answered(at(5_000));
        // This call was sent before the one above, and answered after it.
        ending.answered(at(3_000));
        assert_eq!(ending.end_of(SessionState::Expired, at(14_999)), End::Expired);
    }
}
