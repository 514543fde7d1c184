//! How a session has ended: because a server says so, or because the client crate has heard of no server for too long.
//!
//! The client crate reports both as `Expired`. It gives up when it has heard nothing for 7/5 of the lease
//! (`session_expired_timeout` in 0.11.2). So if `Expired` is seen less than one lease after a call was sent that was answered, a
//! server must have said so. This holds even if this process is paused at any moment, because the crate came to `Expired` no later
//! than it is seen here.

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
    /// A server has confirmed that we ended it.
    Closed,
    /// A server says that there is no such session.
    Expired,
    /// The client crate gave up, and no server has said anything.
    GivenUp,
}

impl End {
    /// Whether a server has said that the session is over.
    pub(super) fn is_word(self) -> bool {
        self != Self::GivenUp
    }

    /// The loss to report for what is held in the session. `None`: nothing is reported, and what is held can be relied on until its
    /// deadline.
    pub(super) fn loss(self) -> Option<LossReason> {
        match self {
            Self::Closed => Some(LossReason::ConnectionLost),
            Self::Expired => Some(LossReason::ExpiredByServer),
            Self::GivenUp => None,
        }
    }
}

/// Finds out how a session has ended.
pub(super) struct Ending {
    ttl: Duration,
    /// Nanoseconds of [`BootInstant`]: when the newest call was sent that a server has answered.
    answered: AtomicU64,
    end: watch::Sender<Option<End>>,
}

impl Ending {
    /// The state of a session with this lease, whose opening was sent at `asked`.
    pub(super) fn new(ttl: Duration, asked: BootInstant) -> Self {
        let answered = AtomicU64::new(asked.as_nanos());
        Self { ttl, answered, end: watch::Sender::new(None) }
    }

    /// Notes that a server has answered a call that was sent at `sent`.
    pub(super) fn answered(&self, sent: BootInstant) {
        self.answered.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Waits for the end of the session, and notes what ended it.
    pub(super) async fn follow(self: Arc<Self>, mut states: StateWatcher) {
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
        self.end.send_replace(Some(self.end_of(state, BootInstant::now())));
    }

    /// Resolves when the session has ended.
    pub(super) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        // The sender is a field of this struct, so waiting cannot fail.
        ended.ok().and_then(|end| *end).unwrap_or(End::GivenUp)
    }

    /// What has ended a session that was seen in this state at this moment.
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
        // This call was sent earlier, and answered later.
        ending.answered(at(3_000));
        assert_eq!(ending.end_of(SessionState::Expired, at(14_999)), End::Expired);
    }
}
