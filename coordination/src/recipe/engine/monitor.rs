//! The task that watches an entry of ours that is held, on stores that notify of its removal.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Mode, NewEntry};
use crate::retry::DecorrelatedJitter;
use crate::session::{Hold, Lease, Session, may_pass};

/// How long after a grant the watch on its entry starts: a shorter hold needs no watch.
const UNWATCHED: Duration = Duration::from_millis(20);
/// The re-check interval of a watch, where its holder is told in another way when to look for its entry.
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the task knows of the entry.
pub(super) struct Monitor {
    pub(super) session: Arc<Session>,
    pub(super) lease: Arc<Lease>,
    pub(super) hold: Arc<Hold>,
    pub(super) entry: NewEntry,
    pub(super) seq: u64,
}

impl Monitor {
    /// Watches the entry until the entry or its session is lost. The hold aborts this task when it is released.
    pub(super) async fn run(self) {
        let Self { session, lease, entry, .. } = &self;
        tokio::time::sleep(UNWATCHED).await;
        let lists = session.backend.lists_held();
        let (recheck, look) = match lists {
            true => (NEVER, session.own_look_interval(lease, &entry.entry_ref.id)),
            false => (session.recheck_interval(lease, &entry.entry_ref.id), NEVER),
        };
        if lists {
            session.look_for_all(lease);
        }
        let mut delays = session.retry_delays(lease.ttl);
        loop {
            let gone = session.gone(&entry.entry_ref, self.seq, Mode::Exclusive, recheck);
            let mut gone = pin!(gone);
            // The watch goes on while the holder looks for its entry: to begin another would cost the store a request.
            // Invariant: it is polled all the time, also during a look. When a connection was made anew, the watch may have a slot for calls, or
            // be the next that is given one, and the look has to wait for a slot as well. If the watch were not polled then, nobody would
            // give the slot back, and the watches of a few holders would take all slots for good.
            let told = loop {
                tokio::select! {
                    biased;
                    told = gone.as_mut() => break told,
                    is_there = self.look_when_due(&mut delays, look), if lists => if !is_there {
                        return;
                    }
                }
            };
            if let Err(error) = told {
                // The session is over. A server may report that once, and then answer nothing more on this connection.
                if let Some(reason) = error.loss_reason() {
                    return lease.lose(reason);
                }
                // Even if notifications fail, the entry itself can perhaps be read.
                tracing::debug!(%error, "cannot watch our entry");
                tokio::time::sleep(delays.next_delay()).await;
            }
            // `gone` may resolve early, for example after an update: so the entry is lost only if it is not found.
            if !self.is_there(&mut delays).await {
                return;
            }
        }
    }

    /// Waits until the holder has to look for its entry itself, and does so. False: the entry is lost, or its session is.
    async fn look_when_due(&self, delays: &mut DecorrelatedJitter, interval: Duration) -> bool {
        self.lease.look_due(&self.hold, interval).await;
        self.is_there(delays).await
    }

    /// Looks for the entry until the store has answered. False: the entry is lost, or its session is.
    async fn is_there(&self, delays: &mut DecorrelatedJitter) -> bool {
        let Self { session, lease, entry, seq, .. } = self;
        loop {
            let look = async { session.backend.is_there(entry, *seq).await };
            match session.attempt(lease.ttl, "watch", look).await {
                Ok(true) => return true,
                Ok(false) => {
                    lease.entry_lost(&entry.entry_ref.id);
                    return false;
                }
                Err(error) => match error.loss_reason() {
                    Some(reason) => {
                        lease.lose(reason);
                        return false;
                    }
                    None if may_pass(&error) => tokio::time::sleep(delays.next_delay()).await,
                    // Refused, by a right that was taken away for instance. That may last, and ten thousand holders may be told so.
                    None => {
                        let pause = session.recheck_interval(lease, &entry.entry_ref.id);
                        tokio::time::sleep(pause).await;
                    }
                },
            }
        }
    }
}
