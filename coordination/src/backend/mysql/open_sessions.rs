//! The sessions that are open: a row each, with an end on the server's clock, which each heartbeat puts off.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::client::Connections;
use super::statement::{Call, number_in, value_in};
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
pub(super) struct OpenSessions {
    connections: Arc<Connections>,
    namespace: String,
    /// The newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The connection on which the newest had no entries but those that we know of.
    settled: AtomicU64,
}

impl OpenSessions {
    pub(super) fn new(connections: Arc<Connections>, namespace: String) -> Self {
        Self { connections, namespace, ours: Mutex::default(), settled: AtomicU64::new(0) }
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
            .number(lease)
            // Lost here, it must not live on there.
            .bytes_or_null(previous.map(|id| id.to_string()));
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
            let ids: String = batch.iter().map(|entry| entry.id.as_str()).collect();
            let width = batch.first().map_or(1, |entry| entry.id.as_str().len());
            let call = Call::new("renew", "renew").of(session).bytes(ids).number(width as u64);
            let answer = self.connections.run_urgently(&call).await?;
            for id in answer.column::<Vec<u8>>("gone")?.chunks(width) {
                gone(&EntryId::from_store(String::from_utf8_lossy(id).into_owned()));
            }
        }
        Ok(())
    }

    /// Removes what a server that took over from another has of entries that were left: once for each connection.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        known: impl Fn() -> Vec<EntryId>,
    ) -> Result<()> {
        let epoch = self.connections.rotation.epoch();
        if self.settled.load(Ordering::Relaxed) == epoch {
            return Ok(());
        }
        let mut at = (0, 0);
        loop {
            let call = Call::new("renew", "settle").of(session).number(at.0).number(at.1);
            let answer = self.connections.run_urgently(&call.number(BATCH as u64)).await?;
            // What is known by now was known when it was entered.
            let known = known();
            for row in &answer.rows {
                at = (number(row, "queue")?, number(row, "seq")?);
                let id: Vec<u8> = value_in("renew", row, "id")?;
                if known.iter().any(|entry| entry.as_str().as_bytes() == id) {
                    continue;
                }
                let call = Call::new("renew", "leave").of(session);
                let call = call.bytes(value_in::<Vec<u8>>("renew", row, "path")?).bytes(id);
                self.connections.run_urgently(&call.number(at.1)).await?;
            }
            if answer.rows.len() < BATCH {
                break self.settled.store(epoch, Ordering::Relaxed);
            }
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

fn number(row: &mysql_async::Row, name: &str) -> Result<u64> {
    number_in("renew", row, name).map(Option::unwrap_or_default)
}
