//! The sessions that are open: an end on the server's clock, which each heartbeat puts off.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::client::Connections;
use super::script::{Call, Script, queue_path};
use crate::backend::{EntryId, EntryRef, NewSession, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// How many sessions are known to be ours: one is open, and others may still be closing.
const REMEMBERED: usize = 8;
/// How many entries one call asks after.
const BATCH: usize = 500;

/// The sessions that this client opened.
pub(super) struct OpenSessions {
    connections: Arc<Connections>,
    /// The channel on which their waiters are told.
    channel: String,
    /// The newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The server that has no entries of the newest but those that we know of.
    settled: Mutex<Option<String>>,
}

impl OpenSessions {
    pub(super) fn new(connections: Arc<Connections>, channel: String) -> Self {
        Self { connections, channel, ours: Mutex::default(), settled: Mutex::default() }
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
        let server = self.connections.run_id();
        let lease = u64::try_from(session.ttl.as_micros()).unwrap_or(u64::MAX);
        let call = Call::new("open", Script::Open)
            .of(session.id)
            .with(key::encode(&session.member))
            .with(self.channel.as_str())
            .with_number(lease)
            // Lost here, it must not live on there.
            .with(previous.map(|id| id.to_string()).unwrap_or_default());
        if self.connections.run(&call).await?.status == "taken" {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        // A new session has no entries.
        *self.settled() = server;
        Ok(Duration::from_micros(lease))
    }

    /// Extends the lease, and answers which of the entries are gone.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
    ) -> Result<Vec<EntryId>> {
        let mut gone = Vec::new();
        // One call at least.
        for batch in held.chunks(BATCH).chain(held.is_empty().then_some(held)) {
            let mut call = Call::new("renew", Script::Renew).of(session);
            for entry in batch {
                call = call.with(queue_path(&entry.queue)).with(entry.id.as_str());
            }
            let mut answer = self.connections.run_urgently(&call).await?;
            while !answer.is_at_end() {
                gone.push(EntryId::from_store(answer.text()?));
            }
        }
        Ok(gone)
    }

    /// Removes what a server that came back with older data, or took over, has of entries that were left.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        known: impl FnOnce() -> Vec<EntryId>,
    ) -> Result<()> {
        let server = self.connections.run_id();
        if *self.settled() == server {
            return Ok(());
        }
        let mut call = Call::new("renew", Script::Settle).of(session);
        for entry in known() {
            call = call.with(entry.as_str());
        }
        self.connections.run_urgently(&call).await?;
        *self.settled() = server;
        Ok(())
    }

    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let call = Call::new("close", Script::Close).with(session.to_string());
        self.connections.run(&call).await.map(drop)
    }

    fn settled(&self) -> MutexGuard<'_, Option<String>> {
        self.settled.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn ours(&self) -> MutexGuard<'_, VecDeque<SessionId>> {
        self.ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
