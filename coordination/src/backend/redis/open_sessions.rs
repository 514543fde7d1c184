//! The sessions that this client has opened. The server stores for each session the moment when its lease ends, by the namespace's
//! clock. Each heartbeat moves that moment to a later one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::client::Connections;
use super::script::{Answer, Call, Script, Source, queue_path};
use crate::backend::server::batches::Batches;
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key;

/// How many of our sessions are remembered, so that `owner` finds the session of an entry. Earlier sessions than the newest are
/// remembered too, because entries of theirs may still be left while they are being closed.
const REMEMBERED: usize = 8;

/// The sessions that this client has opened, and the calls that open, renew and close them.
pub(super) struct OpenSessions {
    connections: Arc<Connections>,
    /// The last part of the name of this client's channel. Each session stores it at the server, so that scripts know where to
    /// publish messages for the session's entries.
    channel: String,
    /// The sessions, the newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The name that the server's record had when [`settle`](Self::settle) was last done. The record gets a new name when the
    /// server may have forgotten something, for instance that an entry was removed. As long as the name is the same, the server has
    /// no entries of the newest session that this client does not know of, and `settle` need not be done again.
    settled: Mutex<Option<String>>,
    batches: Batches,
}

impl OpenSessions {
    pub(super) fn new(connections: Arc<Connections>, channel: String) -> Self {
        let (ours, settled, batches) = (Mutex::default(), Mutex::default(), Batches::default());
        Self { connections, channel, ours, settled, batches }
    }

    pub(super) fn current(&self) -> Option<SessionId> {
        self.ours().back().copied()
    }

    /// The session of ours to which this entry belongs; `None`: it belongs to another client, or to a session of ours that is no
    /// longer remembered.
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
        let record = self.connections.record();
        let lease = u64::try_from(session.ttl.as_micros()).unwrap_or(u64::MAX);
        let call = Call::new("open", Script::Open)
            .of(session.id)
            .with(key::encode(&session.member))
            .with(self.channel.as_str())
            .with_number(lease)
            // If this process had a session before, it has lost that session. The script that opens the new session ends the
            // previous one at the server. Otherwise the entries of the previous session would block others until its lease is over.
            .with(previous.map(|id| id.to_string()).unwrap_or_default());
        // `false`: this call does not wait for replicas. They confirm the session together with its first heartbeat or its first
        // grant, which is early enough.
        if self.connections.run_vouched(&call, false).await?.status == "taken" {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        // A new session has no entries at the server, so the server has none that this client does not know of. `settle` counts as
        // done for the record of this name.
        *self.settled() = record;
        Ok(Duration::from_micros(lease))
    }

    /// Extends the lease, and calls `gone` for each entry in `held` that does not exist at the server any more. If the time for a
    /// heartbeat is not enough for all entries, the next heartbeats ask after the rest.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
        gone: &Gone<'_>,
    ) -> Result<()> {
        let mut round = self.batches.round(held, self.connections.patience);
        while let Some(batch) = round.next() {
            let call = renewal(session, batch);
            let renewing = self.connections.run_vouched(&call, true);
            let Some(answer) = round.ask(renewing).await? else { break };
            gone_in(answer)?.iter().for_each(gone);
        }
        Ok(())
    }

    /// Waits until replicas have confirmed this entry, if the server has `min-replicas-to-write`: a replica that takes over must
    /// know what was granted. To wait, it makes a `renew` for the entry, which also checks that the entry exists; false: the entry
    /// is gone.
    pub(super) async fn confirm(&self, session: SessionId, entry: &EntryRef) -> Result<bool> {
        if !self.connections.has_confirming() {
            return Ok(true);
        }
        let call = renewal(session, std::slice::from_ref(entry));
        is_there(self.connections.run_confirmed(&call).await)
    }

    /// Like [`confirm`](Self::confirm), for a grant that follows from an answer of this `source`: the server that granted has to
    /// confirm. If another one is in use by now, or the same one with other data, the call fails with `Unavailable`, and the caller
    /// asks there whether the entry is still blocked.
    pub(super) async fn confirm_grant(
        &self,
        session: SessionId,
        entry: &EntryRef,
        source: Source,
    ) -> Result<bool> {
        if !source.needs_replicas {
            return Ok(true);
        }
        let call = renewal(session, std::slice::from_ref(entry));
        is_there(self.connections.run_confirmed_by(source, &call).await)
    }

    /// If the server's record has a new name, removes those entries of the session from the server that are not in `known`. A
    /// server that has become the master, or came back with older data, may have entries that this client has removed already; they
    /// would block others.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        known: impl Fn() -> Vec<EntryId>,
    ) -> Result<()> {
        let begun = Instant::now();
        // Each call removes a limited number of entries, so that the server stays free for other clients. If they are so many that
        // the heartbeat, which waits for this, might come too late, the next one goes on.
        while begun.elapsed() < self.connections.patience / 4 {
            let record = self.connections.record();
            if *self.settled() == record {
                break;
            }
            // The entries are listed anew for each call: by now there may be others, entered under an earlier record than this one.
            // For the same reason the script is told the record. If the server has another one by the time of the call, the list may
            // lack entries that were entered before that began, and the script removes nothing.
            let call = Call::new("renew", Script::Settle).of(session);
            let call = call.with(record.clone().unwrap_or_default());
            let call = known().iter().fold(call, |call, entry| call.with(entry.as_str()));
            if self.connections.run_urgently(&call).await?.status != "more" {
                *self.settled() = record;
            }
        }
        Ok(())
    }

    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let call = Call::new("close", Script::Close).with(session.to_string());
        // Each call removes a limited number of entries, so that the server stays free for other clients. The status `more` says
        // that entries are left.
        while self.connections.run(&call).await?.status == "more" {}
        Ok(())
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(super) fn count(&self) -> usize {
        self.ours().len()
    }

    fn settled(&self) -> MutexGuard<'_, Option<String>> {
        self.settled.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn ours(&self) -> MutexGuard<'_, VecDeque<SessionId>> {
        self.ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn renewal(session: SessionId, held: &[EntryRef]) -> Call {
    let call = Call::new("renew", Script::Renew).of(session);
    let with =
        |call: Call, entry: &EntryRef| call.with(queue_path(&entry.queue)).with(entry.id.as_str());
    held.iter().fold(call, with)
}

/// Whether the entry of a [`renewal`] with one entry exists. The entry was entered before, so the effect of an error is `Unknown`.
fn is_there(renewed: Result<Answer>) -> Result<bool> {
    let renewed = renewed.map_err(|error| error.with_effect(Effect::Unknown))?;
    Ok(gone_in(renewed)?.is_empty())
}

fn gone_in(mut answer: Answer) -> Result<Vec<EntryId>> {
    // Skips the first number, the server's time, which `Connection::run` has noted already.
    answer.natural()?;
    let mut gone = Vec::new();
    while !answer.is_at_end() {
        gone.push(EntryId::from_store(answer.text()?));
    }
    Ok(gone)
}
