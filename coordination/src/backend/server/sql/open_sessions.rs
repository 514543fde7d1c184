//! The sessions that are open: a row each, with an end on the server's clock, which each heartbeat puts off.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::{Argument, Call, Connections, Dialect, Row as _};
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// How many sessions are known to be ours: one is open, and others may still be closing.
const REMEMBERED: usize = 8;
/// How many entries one call asks after.
const BATCH: usize = 500;
/// How often a row of a session that is closed is found to be locked before it is left to others.
const LOCKED: usize = 20;
/// Between two of these tries.
const MOMENT: Duration = Duration::from_millis(5);

/// The sessions that this client opened.
pub(super) struct OpenSessions<D: Dialect> {
    connections: Arc<Connections<D>>,
    namespace: String,
    /// The newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The connection on which the newest had no entries but those that we know of.
    settled: AtomicU64,
    /// Held by who looks for others.
    settling: tokio::sync::Mutex<()>,
}

impl<D: Dialect> OpenSessions<D> {
    pub(super) fn new(connections: Arc<Connections<D>>, namespace: String) -> Self {
        let (settled, settling) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        Self { connections, namespace, ours: Mutex::default(), settled, settling }
    }

    /// The newest one.
    pub(super) fn current(&self) -> Option<SessionId> {
        self.ours().back().copied()
    }

    /// The one of ours that has this entry.
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
            // Lost here, it must not live on there.
            .with(Argument::Bytes(previous.map(|id| id.to_string().into_bytes())));
        if self.connections.run(&call).await?.status() == "taken" {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        Ok(Duration::from_micros(lease))
    }

    /// Extends the lease, and tells which of the entries are gone.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
        gone: &Gone<'_>,
    ) -> Result<()> {
        // One call at least.
        for batch in held.chunks(BATCH).chain(held.is_empty().then_some(held)) {
            let ids = batch.iter().map(|entry| entry.id.as_str().into()).collect();
            let width = batch.first().map_or(1, |entry| entry.id.as_str().len());
            let call = Call::new("renew", "renew").of(session).with(Argument::Ids(ids));
            let answer = self.connections.run_urgently(&call).await?;
            // One after the other.
            for id in answer.row()?.bytes("renew", "gone")?.chunks(width) {
                gone(&EntryId::from_store(String::from_utf8_lossy(id).into_owned()));
            }
        }
        Ok(())
    }

    /// Whether on the connection of this epoch the session has no entries but those that we know of.
    pub(super) fn is_settled(&self, epoch: u64) -> bool {
        self.settled.load(Ordering::Relaxed) == epoch
    }

    /// Removes what a server that took over from another has of entries that were left: once for each connection. It was of this
    /// epoch before the last heartbeat, so that what comes on older connections is refused.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        epoch: u64,
        own: &OwnEntries<D::Known>,
    ) -> Result<()> {
        let Ok(_alone) = self.settling.try_lock() else { return Ok(()) };
        let are_gone = D::settle(&self.connections, session, own).await?;
        // Otherwise the next heartbeat comes again.
        if are_gone && self.connections.rotation.epoch() == epoch {
            self.settled.store(epoch, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let call =
            Call::new("close", "close").bytes(self.namespace.as_str()).bytes(session.to_string());
        let mut locked = 0;
        // One call removes so many entries and no more.
        loop {
            match self.connections.run(&call).await?.status().as_str() {
                "more" => {}
                // It is over all the same, and whoever meets the rest removes it.
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
