//! How a session has ended: a server has said that the session is over, or the client crate has not heard from any server for too
//! long.
//!
//! The client crate reports both as `Expired`. The crate gives the session up when it has not heard from a server for 7/5 of the
//! lease (`session_expired_timeout` in 0.11.2). Suppose that a call was answered, and that `Expired` is seen here less than one
//! lease after this call was sent. Then the crate cannot have given up, so a server must have said it. This holds even if this
//! process was paused at any moment: a pause only makes this process see `Expired` later.
//!
//! The lease that the crate goes by is the one that was granted on the last connection, and that may be shorter than the session's
//! ([`Grants::may_be_shorter`]). As long as it may be, only the shortest lease that servers grant is taken for granted here. If `Expired`
//! comes later than that, but within the session's lease, there are two possibilities. Either a server has said it, or the lease was
//! made shorter and the crate has given up. Holders can rely on nothing any more in both cases, so the loss is reported. But in
//! the second case the session may live on: each of the crate's attempts to connect that reaches a server renews it there, even if the
//! crate never gets the answer. So its end does not count as confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use zookeeper_client::{SessionState, StateWatcher};

use super::grants::Grants;
use crate::error::LossReason;
use crate::time::BootInstant;

/// What has ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A server has confirmed that this client ended the session.
    Closed,
    /// A server has said that there is no such session.
    Expired,
    /// A server has said so, or the client crate has given up the session, for which the servers have granted a shorter lease.
    Doubtful,
    /// The client crate has given the session up, and no server has said that it is over.
    GivenUp,
}

impl End {
    /// Whether this end is known from a server. If so, the session is certainly over at the servers too.
    pub(super) fn is_word(self) -> bool {
        matches!(self, Self::Closed | Self::Expired)
    }

    /// The loss to report for the entries that are held in the session. `None`: nothing is reported, because the session may still
    /// live at the servers; the holders can rely on their entries until the deadline.
    pub(super) fn loss(self) -> Option<LossReason> {
        match self {
            Self::Closed => Some(LossReason::ConnectionLost),
            Self::Expired | Self::Doubtful => Some(LossReason::ExpiredByServer),
            Self::GivenUp => None,
        }
    }
}

/// Finds out how one session has ended.
pub(super) struct Ending {
    ttl: Duration,
    /// The shortest lease that the servers grant.
    shortest: Duration,
    /// When the newest call that a server has answered was sent, in nanoseconds of [`BootInstant`].
    answered: AtomicU64,
    end: watch::Sender<Option<End>>,
}

impl Ending {
    /// The initial state for a session with the lease `ttl`, at servers that grant `shortest` at least. `asked`: when the request that
    /// opened it was sent.
    pub(super) fn new(ttl: Duration, shortest: Duration, asked: BootInstant) -> Self {
        let answered = AtomicU64::new(asked.as_nanos());
        Self { ttl, shortest, answered, end: watch::Sender::new(None) }
    }

    /// Notes that a server has answered a call, which was sent at the moment `sent`.
    pub(super) fn answered(&self, sent: BootInstant) {
        self.answered.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Waits until the session has ended, and notes how it has ended.
    pub(super) async fn follow(self: Arc<Self>, mut states: StateWatcher, grants: Arc<Grants>) {
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
        let end = self.end_of(state, BootInstant::now(), grants.may_be_shorter());
        self.end.send_replace(Some(end));
    }

    /// Resolves when the session has ended, and returns how.
    pub(super) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        // This struct owns the sender, so the sender still exists, and `wait_for` cannot fail.
        ended.ok().and_then(|end| *end).unwrap_or(End::GivenUp)
    }

    /// How the session has ended, if it was seen in the state `state` at the moment `seen`. `may_be_shorter`: whether the crate may go
    /// by a shorter lease than the session's.
    fn end_of(&self, state: SessionState, seen: BootInstant, may_be_shorter: bool) -> End {
        let answered = BootInstant::from_nanos(self.answered.load(Ordering::SeqCst));
        let unanswered = seen.saturating_duration_since(answered);
        let least = if may_be_shorter { self.shortest } else { self.ttl };
        match state {
            SessionState::Closed => End::Closed,
            SessionState::Expired if unanswered < least => End::Expired,
            SessionState::Expired if unanswered < self.ttl => End::Doubtful,
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
        let ending = Ending::new(Duration::from_secs(10), Duration::from_secs(4), at(1_000));
        let end = |state, seen| ending.end_of(state, at(seen), false);
        assert_eq!(end(SessionState::Expired, 10_999), End::Expired);
        assert_eq!(end(SessionState::Expired, 11_000), End::GivenUp);
        assert_eq!(end(SessionState::Closed, 11_000), End::Closed);
        assert_eq!(end(SessionState::AuthFailed, 2_000), End::GivenUp);
        ending.answered(at(5_000));
        // This call was sent before the one above, and answered after it.
        ending.answered(at(3_000));
        assert_eq!(end(SessionState::Expired, 14_999), End::Expired);
    }

    /// With a lease of four seconds, the client crate gives up after 5.6 seconds. The servers may know the session then.
    #[test]
    fn within_a_lease_that_may_be_shorter_nobody_knows_who_has_said_it() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let ending = Ending::new(Duration::from_secs(10), Duration::from_secs(4), at(1_000));
        let end = |seen| ending.end_of(SessionState::Expired, at(seen), true);
        assert_eq!(end(4_999), End::Expired);
        for doubtful in [5_000, 6_600, 10_999] {
            assert_eq!(end(doubtful), End::Doubtful);
        }
        assert!(!End::Doubtful.is_word());
        assert_eq!(End::Doubtful.loss(), Some(LossReason::ExpiredByServer));
        assert_eq!(end(11_000), End::GivenUp);
    }
}
