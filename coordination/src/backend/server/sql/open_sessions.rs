//! The sessions that this client has opened. Each session is a row in the database. The row has the moment at which the lease ends,
//! by the server's clock. Each heartbeat moves this moment into the future.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::{Argument, Call, Connections, Dialect, Freed, Row as _, Update};
use crate::backend::server::batches::Batches;
use crate::backend::server::in_time;
use crate::backend::server::own_entries::OwnEntries;
use crate::backend::server::updates::Updates;
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::key;

/// How many of our sessions are remembered. Only one is open, but earlier ones may still be closing.
const REMEMBERED: usize = 8;
/// How often `close` tries again to remove entries whose rows are locked. After the last of these tries, `close` leaves the entries
/// that are still locked in their queues. The next client that would have to wait for such an entry removes it.
const LOCKED: usize = 20;
/// The pause of `close` between two tries to remove entries whose rows are locked.
const MOMENT: Duration = Duration::from_millis(5);

/// The sessions that this client opened.
pub(super) struct OpenSessions<D: Dialect> {
    connections: Arc<Connections<D>>,
    namespace: String,
    /// The sessions, the newest last.
    ours: Mutex<VecDeque<SessionId>>,
    /// The epoch of the newest connection for which [`settle`](Self::settle) is done.
    settled: AtomicU64,
    /// Held while [`settle`](Self::settle) runs, so that this function runs only once at a time.
    settling: tokio::sync::Mutex<()>,
    /// Held while [`clear_up`](Self::clear_up) runs.
    clearing: tokio::sync::Mutex<()>,
    batches: Batches,
}

impl<D: Dialect> OpenSessions<D> {
    pub(super) fn new(connections: Arc<Connections<D>>, namespace: String) -> Self {
        let (settled, settling) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        let (clearing, ours, batches) = Default::default();
        Self { connections, namespace, ours, settled, settling, clearing, batches }
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
            // The session that this client had before. If that session is still open at the server, the server ends it and removes
            // its entries: this client may have lost the session although the server does not know of that.
            .with(Argument::Bytes(previous.map(|id| id.to_string().into_bytes())));
        if self.connections.run(&call).await?.status() == "taken" {
            let message = format!("another live session has the member id {:?}", session.member);
            return Err(Error::new(ErrorKind::MemberExists, "open", message));
        }
        Ok(Duration::from_micros(lease))
    }

    /// Extends the lease, and calls `gone` for each of the `held` entries that the server does not have any more. If the time for a
    /// heartbeat is not enough for all entries, the next heartbeats ask after the rest. Returns what
    /// [`is_due`](Dialect::is_due) says of the heartbeat.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        held: &[EntryRef],
        gone: &Gone<'_>,
    ) -> Result<Option<bool>> {
        let mut is_due = None;
        let mut round = self.batches.round(held, self.connections.patience);
        while let Some(batch) = round.next() {
            let ids = batch.iter().map(|entry| entry.id.as_str().into()).collect();
            let width = batch.first().map_or(1, |entry| entry.id.as_str().len());
            let call = Call::new("renew", "renew").of(session).with(Argument::Ids(ids));
            let renewing = self.connections.run_urgently(&call);
            let Some(answer) = round.ask(renewing).await? else { break };
            // The answer has the ids of the entries that are gone, one after the other, each `width` bytes long.
            for id in answer.row()?.bytes("renew", "gone")?.chunks(width) {
                gone(&EntryId::from_store(String::from_utf8_lossy(id).into_owned()));
            }
            is_due = is_due.or(D::is_due(answer.row()?)?);
        }
        Ok(is_due)
    }

    /// Removes a limited number of the entries that other clients' sessions have left, whose time has passed. If it is still under way,
    /// does nothing. The result of the call does not matter: a later heartbeat says again that this is due.
    pub(super) async fn clear_up(&self, all_times: bool) {
        let Ok(_alone) = self.clearing.try_lock() else { return };
        let call = Call::new("renew", "clear_up").flag(all_times);
        let _ = in_time(self.connections.patience, self.connections.run(&call)).await;
    }

    /// Whether [`settle`](Self::settle) is done on the connection of this epoch.
    pub(super) fn is_settled(&self, epoch: u64) -> bool {
        self.settled.load(Ordering::Relaxed) == epoch
    }

    /// Removes the entries of the session that this client does not know, once for each new connection, and makes the last updates of
    /// those that it knows again, if they were made on an earlier one. The new connection may lead to a replica that has become the
    /// primary. Such a replica may lack the newest releases, and so still have entries that this client has left; and it may lack the
    /// newest updates.
    ///
    /// Called after a heartbeat on the connection of this epoch. From that heartbeat on, the server rejects the session's calls
    /// that come on older connections, so that no such call can add an unknown entry afterwards.
    pub(super) async fn settle(
        &self,
        session: SessionId,
        epoch: u64,
        own: &OwnEntries<D::Known>,
        updates: &Updates<Update, u64>,
    ) -> Result<()> {
        let Ok(_alone) = self.settling.try_lock() else { return Ok(()) };
        if !self.is_settled(epoch) {
            let are_gone = D::settle(&self.connections, session, own).await?;
            // If some entries could not be removed, or if the connection was given up meanwhile, the next heartbeat calls this
            // function again.
            if are_gone && self.connections.rotation.epoch() == epoch {
                self.settled.store(epoch, Ordering::Relaxed);
            }
        }
        let make = |id, update| self.update_again(id, update);
        let now = || self.connections.rotation.epoch();
        updates.make_again(&updates.due(session, &epoch), now, make).await;
        Ok(())
    }

    async fn update_again(&self, id: EntryId, update: Arc<Update>) -> Result<()> {
        let (call, epoch) = (update.call(&id), self.connections.rotation.epoch());
        in_time(self.connections.patience, self.connections.run(&call)).await?;
        let freed = update.is_shared.then_some(Freed::Shared(update.seq));
        self.connections.link.dialect.touched(&update.path, epoch, freed);
        Ok(())
    }

    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let call =
            Call::new("close", "close").bytes(self.namespace.as_str()).bytes(session.to_string());
        let mut locked = 0;
        // One call removes only a limited number of entries, so that it does not take long. Its status is `more` if there are
        // further entries to remove.
        loop {
            match self.connections.run(&call).await?.status().as_str() {
                "more" => {}
                // The session is over in any case, but some of its entries are left, because other transactions have locked their
                // rows. As soon as such a row is unlocked, the next client that would have to wait for the entry removes it.
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
