//! What a policy decided is written, and confirmed, though the store may refuse it for now.

use std::sync::Arc;

use super::own_entry::OwnEntry;
use super::policy::{Decision, Policy};
use super::turn::{Acquire, Turn};
use crate::backend::{Data, Entry, Mode};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::retry::DecorrelatedJitter;
use crate::session::is_refusal;

/// The store's refusals to write what a policy has decided, while its entry waits on.
///
/// For an entry that has waited: that the store has no room, or refuses our login or the call, may pass (`F-36`, `F-56`). So such an
/// entry waits on in its place. What was decided may be wrong by then: somebody may have changed the number of slots, for instance. So
/// the queue is read and it is decided anew.
pub(super) struct Refusals<'a> {
    acquire: &'a Acquire,
    own: &'a OwnEntry,
    policy: &'a dyn Policy,
    delays: DecorrelatedJitter,
    /// Whether the log was told of one.
    is_told: bool,
    /// What was to be taken by updates of our entry that were refused, although the store may have carried them out.
    in_doubt: Option<Data>,
    /// Whether a server that was asked since this entry began to wait needs the confirmation of others, so that one of them may
    /// take over.
    may_be_replaced: bool,
}

impl<'a> Refusals<'a> {
    pub(super) fn new(acquire: &'a Acquire, own: &'a OwnEntry, policy: &'a dyn Policy) -> Self {
        let delays = acquire.session.retry_delays(own.lease().ttl);
        let (is_told, in_doubt, may_be_replaced) = (false, None, false);
        Self { acquire, own, policy, delays, is_told, in_doubt, may_be_replaced }
    }

    /// Stores with our entry what it takes, and returns what that is; `None`: the store has refused it, and it is to be decided anew.
    ///
    /// If an earlier update is in doubt, this repeats that update, whatever the policy chooses now (S9). The earlier update may come
    /// late and then be replaced by this one. Entries after ours that decide in between see the slots of the earlier one as
    /// taken, and may take those that the policy would choose now. Nobody else has the earlier slots: entries before ours can only give
    /// slots back, and entries after ours decide only once ours is shared, and see its slots then.
    pub(super) async fn take(&mut self, data: Data, has_waited: bool) -> Result<Option<Data>> {
        let data = self.in_doubt.clone().unwrap_or(data);
        let updated = self.own.update("acquire", Mode::Shared, Arc::clone(&data)).await;
        let may_be_there = updated.as_ref().is_err_and(|refused| refused.effect() != Effect::None);
        if may_be_there {
            self.in_doubt = Some(Arc::clone(&data));
        }
        Ok(self.or_pause(updated, has_waited).await?.map(|()| data))
    }

    /// What our entry has taken by an update that is in doubt, if the entry as it is listed shows that it was carried out.
    pub(super) fn taken_nevertheless(&self, listed: &Entry) -> Option<Data> {
        let taken = self.in_doubt.as_ref().filter(|taken| listed.data == **taken)?;
        self.note(None);
        Some(Arc::clone(taken))
    }

    pub(super) fn note_server(&mut self) {
        self.may_be_replaced |= self.acquire.session.backend.confirms();
    }

    /// The turn has come, once everything that a grant of the store has to survive knows our entry and what it has taken. `None`: a
    /// server that has taken over meanwhile does not know that, or not why the turn had come, and it is to be decided anew.
    pub(super) async fn confirmed(
        &mut self,
        taken: Option<Data>,
        has_waited: bool,
    ) -> Result<Option<Turn>> {
        self.note_server();
        let (session, own) = (&self.acquire.session, self.own);
        let entry = own.entry();
        let confirm = || session.backend.confirm(entry);
        if !self.retried(has_waited, confirm).await? {
            return Ok(Some(Turn::EntryLost));
        }
        if !self.may_be_replaced {
            return Ok(Some(Turn::Mine(taken)));
        }
        // The server that has confirmed may be another one than that which was told what the entry takes, or which has the value and
        // the entries that made it its turn.
        let read = || session.backend.read_standing(&entry.entry_ref.queue);
        let listing = self.retried(has_waited, read).await?;
        let Some(listed) = listing.entry(own.seq().unwrap_or_default()) else {
            return Ok(Some(Turn::EntryLost));
        };
        let is_known = match &taken {
            Some(taken) => listed.mode == Mode::Shared && listed.data == *taken,
            None => matches!(self.policy.decide(&listing, listed)?, Decision::Grant),
        };
        if !is_known {
            self.in_doubt = None;
            return Ok(None);
        }
        Ok(Some(Turn::Mine(taken)))
    }

    pub(super) async fn retried<T, C>(&self, has_waited: bool, call: impl Fn() -> C) -> Result<T>
    where
        C: Future<Output = Result<T>>,
    {
        let (session, lease) = (&self.acquire.session, self.own.lease());
        match has_waited {
            false => session.retry_until_settled(lease, "acquire", call).await,
            true => session.retry_while_waiting(lease, "acquire", call).await,
        }
    }

    /// If the store has refused this for now, and the entry waits on: waits a moment, and returns `None`.
    pub(super) async fn or_pause<T>(
        &mut self,
        outcome: Result<T>,
        has_waited: bool,
    ) -> Result<Option<T>> {
        let refused = match outcome {
            Err(error) if has_waited && (is_refusal(&error) || is_full(&error)) => error,
            outcome => {
                self.note(None);
                return outcome.map(Some);
            }
        };
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(error = %refused, "refused while it waits; it goes on waiting");
        }
        self.note(Some(refused));
        tokio::select! {
            biased;
            _ = self.own.lease().ended() => {}
            () = tokio::time::sleep(self.delays.next_delay()) => {}
        }
        Ok(None)
    }

    pub(super) fn note(&self, refused: Option<Error>) {
        self.policy.refused(refused.as_ref());
        self.acquire.tries().refused = refused;
    }
}

fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Quota
}
