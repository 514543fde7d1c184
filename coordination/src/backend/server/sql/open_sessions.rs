//! The sessions that this client has opened. Each is a row in the database, with the moment at which its lease ends by the server's
//! clock. Each heartbeat moves that moment.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Argument, Call, Connections, Dialect, Row as _};
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// How many of our sessions are remembered: one is open, and earlier ones may still be closing.
const REMEMBERED: usize = 8;
/// How many held entries one call of `renew` checks.
const BATCH: usize = 500;
/// How often `close` tries again to remove entries whose rows are locked. After that they are left to whoever comes across them.
const LOCKED: usize = 20;
/// The pause between two of the tries that [`LOCKED`] counts.
const MOMENT: Duration = Duration::from_millis(5);

/// The sessions that this client opened.
pub(super) struct OpenSessions<D: Dialect> {
    connections: Arc<Connections<D>>,
    namespace: String,
    /// The sessions, the newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The epoch of the newest connection for which [`settle`](Self::settle) is done.
    settled: AtomicU64,
    /// Held while [`settle`](Self::settle) runs, so that only one runs at a time.
    settling: tokio::sync::Mutex<()>,
    /// The index of the batch of entries with which the next heartbeat begins, because a heartbeat may have no time for all
    /// batches.
    next: AtomicUsize,
}

impl<D: Dialect> OpenSessions<D> {
    pub(super) fn new(connections: Arc<Connections<D>>, namespace: String) -> Self {
        let (settled, settling) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        let next = AtomicUsize::new(0);
        Self { connections, namespace, ours: Mutex::default(), settled, settling, next }
    }

    /// The newest session.
    pub(super) fn current(&self) -> Option<SessionId> {
        self.ours().back().copied()
    }

    /// The session of ours to which this entry belongs.
    pub(super) fn owner(&self, entry: &EntryId) -> Option<SessionId> {
        self.ours().iter().copied().find(|session| entry.is_of(*session))
    }

    pub(super) async fn open(&self, session: &NewSession) -> Result<Duration> {
        let previous = {
            let mut ours = self.ours();
            let previous = ours.iter().copied().rfind(|id| *id != session.id);
            if !ours.contains(&session.id) {
                ours.push_back(session.id);
            }
            if ours.len() > REMEMBERED {
                ours.pop_front();
            }
            previous
        };
        let lease = u64::try_from(session.ttl.as_micros()).unwrap_or(u64::MAX);
        let call = Call::new("open", "open")
            .bytes(self.namespace.as_str())
            .of(session.id)
            .bytes(key::encode(&session.member))
            .with(Argument::Channel)
            .number(lease)
            // This client's previous session. The server ends it and frees its entries, if it is still open there: this client may
            // have lost it without the server's knowledge.
            .with(Argument::Bytes(previous.map(|id| id.to_string().into_bytes())));
        if self.connections.run(&call).await?.status() == "taken" {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        Ok(Duration::from_micros(lease))
    }

    /// Extends the lease, and calls `gone` for each of these entries that the session does not have any more.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
        gone: &Gone<'_>,
    ) -> Result<()> {
        // There is at least one batch, so that the lease is extended even if no entry is held.
        let mut batches: Vec<_> =
            held.chunks(BATCH).chain(held.is_empty().then_some(held)).collect();
        let next = self.next.load(Ordering::Relaxed) % batches.len();
        batches.rotate_left(next);
        let begun = Instant::now();
        for (done, batch) in batches.into_iter().enumerate() {
            if done > 0 && begun.elapsed() > self.connections.patience / 4 {
                break;
            }
            // Stored before the call: a batch that cannot be asked after is not the first one again.
            self.next.store(next + done + 1, Ordering::Relaxed);
            let ids = batch.iter().map(|entry| entry.id.as_str().into()).collect();
            let width = batch.first().map_or(1, |entry| entry.id.as_str().len());
            let call = Call::new("renew", "renew").of(session).with(Argument::Ids(ids));
            let answer = match self.connections.run_urgently(&call).await {
                Err(error) if done > 0 && error.kind() != ErrorKind::Lost => break,
                answer => answer?,
            };
            // The answer has the ids one after the other, each `width` bytes long.
            for id in answer.row()?.bytes("renew", "gone")?.chunks(width) {
                gone(&EntryId::from_store(String::from_utf8_lossy(id).into_owned()));
            }
        }
        Ok(())
    }

    /// Whether [`settle`](Self::settle) is done on the connection of this epoch.
    pub(super) fn is_settled(&self, epoch: u64) -> bool {
        self.settled.load(Ordering::Relaxed) == epoch
    }

    /// Removes entries of the session that this client does not know, once for each new connection: a replica that took over may
    /// lack the newest releases, and so still have entries that were left.
    ///
    /// Called after a heartbeat on this epoch: from then on the server rejects calls that come on older connections, so that none
    /// of them can add an unknown entry afterwards.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        epoch: u64,
        own: &OwnEntries<D::Known>,
    ) -> Result<()> {
        let Ok(_alone) = self.settling.try_lock() else { return Ok(()) };
        let are_gone = D::settle(&self.connections, session, own).await?;
        // Otherwise the next heartbeat starts this again.
        if are_gone && self.connections.rotation.epoch() == epoch {
            self.settled.store(epoch, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let call =
            Call::new("close", "close").bytes(self.namespace.as_str()).bytes(session.to_string());
        let mut locked = 0;
        // A call removes only a limited number of entries, so that it does not take long, and answers `more` if some are left.
        loop {
            match self.connections.run(&call).await?.status().as_str() {
                "more" => {}
                // The session is over in any case. The entries that are left block others only until their rows are free: whoever
                // comes across one then removes it.
                "locked" if locked < LOCKED => {
                    locked += 1;
                    tokio::time::sleep(MOMENT).await;
                }
                _ => return Ok(()),
            }
        }
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(super) fn count(&self) -> usize {
        self.ours().len()
    }

    fn ours(&self) -> MutexGuard<'_, VecDeque<SessionId>> {
        self.ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
