//! Whether the servers still grant a session's lease, after the client crate has connected again.
//!
//! On each connection, the server grants the session a lease anew: the one that the client asks for, but at most its own
//! `maxSessionTimeout`. From then on the servers keep the session no longer than that. But the client crate says neither which lease
//! was granted on a later connection nor which server granted it (0.11.2). So after each new connection all servers are asked for
//! a session with the same lease (`probe.rs`). Before they have granted it, no heartbeat on this connection counts. If one of them
//! grants less, the session is lost at once, because a holder would rely on its lock for longer than the servers keep it.
//!
//! On a later connection, the crate asks for no more than was granted on the one before. So if a connection breaks before the servers
//! have answered, the session may have a shorter lease from then on, whichever server it goes to. After that, each host of the URL has
//! to answer: the one that has granted less may be away.
//!
//! The crate says that there is a connection as soon as a server has accepted the session. If the connection breaks before that server
//! has answered anything else, the crate goes on saying so until it has reached the next server, however long that takes
//! (`Session::start_once` in 0.11.2). In that time other servers may grant the lease, for a connection that is none. So the servers'
//! answer counts for later connections only if a heartbeat was answered on the connection for which they were asked.
//!
//! For each server this costs two writes in the ensemble. So that a thousand clients of a server that is gone do not ask at one
//! moment, each waits for a random time first.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::sleep;
use zookeeper_client::{SessionState, StateWatcher};

use super::probe::Granted;
use crate::env;

/// The random time before the servers are asked is at most the lease divided by this. It is short, because the first heartbeat that
/// counts after an outage has to wait for it.
const SPREAD: u32 = 40;
/// The pause before the servers are asked once more, if none of them has granted a session, or too few have.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of the lease that the servers grant to one session.
pub(super) struct Grants {
    /// Has seen the state of the session that began with the newest connection for which the servers have granted the lease. As long
    /// as the state has not changed since, this is the present connection.
    granted: watch::Sender<StateWatcher>,
    is_shortened: watch::Sender<bool>,
    /// Whether a call was answered on the connection that was seen last. The crate opens a session only if one was.
    is_answered: AtomicBool,
    /// What [`may_be_shorter`](Self::may_be_shorter) returns.
    may_be_shorter: AtomicBool,
}

impl Grants {
    /// `connected` has seen the state in which the session was opened.
    pub(super) fn new(connected: StateWatcher) -> Self {
        Self {
            granted: watch::Sender::new(connected),
            is_shortened: watch::Sender::new(false),
            is_answered: AtomicBool::new(true),
            may_be_shorter: AtomicBool::new(false),
        }
    }

    /// To be called when a call was answered. `connection` has seen the state of the session before the call was sent. Resolves when
    /// the servers have granted the lease for the present connection. Returns true if the call was sent and answered on it.
    pub(super) async fn hold_on(&self, connection: &StateWatcher) -> bool {
        if is_unchanged(connection) {
            self.is_answered.store(true, Ordering::Relaxed);
        }
        let mut granted = self.granted.subscribe();
        // This struct owns the sender, so the sender still exists, and `wait_for` cannot fail.
        let is_granted = granted.wait_for(is_unchanged).await.is_ok();
        is_granted && is_unchanged(connection)
    }

    /// Resolves when a server has granted a shorter lease than that of the session.
    pub(super) async fn shortened(&self) {
        let mut is_shortened = self.is_shortened.subscribe();
        // As above, `wait_for` cannot fail.
        let _ = is_shortened.wait_for(|is_shortened| *is_shortened).await;
    }

    /// Whether the last connection may have a shorter lease than the session: from each new connection until the servers have granted
    /// the lease for it, and longer if it breaks before.
    pub(super) fn may_be_shorter(&self) -> bool {
        self.may_be_shorter.load(Ordering::Relaxed)
    }

    /// Asks the servers after each new connection of the session, until one of them grants less than the `lease`.
    pub(super) async fn ask_after_reconnects<F>(&self, lease: Duration, ask: impl Fn() -> F)
    where
        F: Future<Output = Option<Granted>>,
    {
        let mut states = self.granted.borrow().clone();
        let mut seen = Seen::new();
        loop {
            loop {
                let state = states.changed().await;
                let is_connected =
                    seen.note(state, self.is_answered.swap(false, Ordering::Relaxed));
                self.may_be_shorter.store(seen.may_be_shorter, Ordering::Relaxed);
                if is_connected {
                    break;
                }
            }
            // R4: a thousand clients must not all ask at the same moment.
            let spread = env::rng().random_range(Duration::ZERO..=lease / SPREAD);
            sleep(spread).await;
            // If the connection breaks meanwhile, the servers are asked after the next one.
            let (mut is_granted, mut is_told) = (false, false);
            while !is_granted && is_unchanged(&states) {
                match ask().await {
                    Some(Granted { least, .. }) if least < lease => {
                        tracing::warn!(
                            granted = ?least,
                            ?lease,
                            "a server grants a shorter lease than it or another server did before"
                        );
                        self.is_shortened.send_replace(true);
                        return;
                    }
                    Some(granted) if granted.is_by_all || !seen.is_unsure => {
                        is_granted = is_unchanged(&states);
                    }
                    _ => {
                        if !is_told {
                            is_told = true;
                            tracing::warn!(
                                ?lease,
                                "no heartbeat counts before the servers have said which lease they grant"
                            );
                        }
                        sleep(PAUSE).await;
                    }
                }
            }
            seen.is_unsure = !is_granted;
            if is_granted {
                seen.may_be_shorter = false;
                self.may_be_shorter.store(false, Ordering::Relaxed);
                self.granted.send_replace(states.clone());
            }
        }
    }
}

/// What was seen of a session's connections since the one for which the servers have last granted the lease.
struct Seen {
    /// The state that was seen last.
    state: SessionState,
    /// Whether a connection broke before the servers had answered, or before a call was answered on it.
    is_unsure: bool,
    /// Whether there was a connection since. One on which no call was answered does not matter here: the crate gives a session up by
    /// the lease of a connection on which one was.
    may_be_shorter: bool,
}

impl Seen {
    /// There is a connection, and the servers have granted the lease for it.
    fn new() -> Self {
        Self { state: SessionState::SyncConnected, is_unsure: false, may_be_shorter: false }
    }

    /// To be called with each state that is seen, and with whether a call was answered since the one before. Returns true if the state
    /// says that there is a connection.
    fn note(&mut self, state: SessionState, is_answered: bool) -> bool {
        // If several changes follow each other quickly, only the last one is seen. But the crate never reports the same state twice
        // in a row (`Session::change_state` in 0.11.2). So between two reports that there is no connection, there was one.
        let was_missed = state == SessionState::Disconnected && self.state == state;
        let was_none = self.state == SessionState::SyncConnected && !is_answered;
        self.is_unsure |= was_missed || was_none;
        self.may_be_shorter |= was_missed || state == SessionState::SyncConnected;
        self.state = state;
        state == SessionState::SyncConnected
    }
}

/// Whether the session's state has not changed since `seen` has seen it: every change of the connection is one of the state.
fn is_unchanged(seen: &StateWatcher) -> bool {
    let mut seen = seen.clone();
    // Not by the budget of the task: a task that has used it up would be told that nothing has changed.
    let changed = pin!(unconstrained(seen.changed()));
    changed.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[cfg(test)]
mod tests {
    use zookeeper_client::SessionState::{Disconnected, SyncConnected};

    use super::*;

    #[test]
    fn a_connection_that_nobody_saw_leaves_the_lease_unsure() {
        let after = |states: &[SessionState]| {
            let mut seen = Seen::new();
            let mut is_connected = true;
            for state in states {
                is_connected = seen.note(*state, true);
            }
            (is_connected, seen.is_unsure)
        };
        assert_eq!(after(&[Disconnected]), (false, false));
        assert_eq!(after(&[Disconnected, SyncConnected]), (true, false));
        assert_eq!(after(&[Disconnected, Disconnected, SyncConnected]), (true, true));
    }

    #[test]
    fn a_connection_may_have_a_shorter_lease_even_if_nobody_saw_it() {
        let may_be_shorter = |states: &[SessionState]| {
            let mut seen = Seen::new();
            for state in states {
                seen.note(*state, true);
            }
            seen.may_be_shorter
        };
        assert!(!may_be_shorter(&[Disconnected]));
        assert!(may_be_shorter(&[Disconnected, SyncConnected]));
        assert!(may_be_shorter(&[Disconnected, SyncConnected, Disconnected]));
        assert!(may_be_shorter(&[Disconnected, Disconnected]));
    }

    /// The servers may have granted the lease for it all the same.
    #[test]
    fn a_connection_on_which_nothing_was_answered_leaves_the_lease_unsure() {
        for is_answered in [true, false] {
            let mut seen = Seen::new();
            assert!(!seen.note(Disconnected, true) && seen.note(SyncConnected, false));
            assert!(!seen.is_unsure, "the servers are asked, and grant the lease");
            assert!(!seen.note(Disconnected, is_answered) && seen.note(SyncConnected, false));
            assert_eq!(seen.is_unsure, !is_answered);
        }
    }
}
