//! How a claim becomes one that this process holds, and how it is given back.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::claim::{self, Ask, Seen, bring_back_then};
use super::delivery::DELIVERY;
use super::draft::Draft;
use super::engine::Gone;
use super::layout::Micros;
use super::types::{ClaimOptions, ClaimView, duration, micros};
use super::{ClaimId, WorkClaim, WorkQueue};
use crate::backend::Mode;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::recipe::engine::grant::Grant;
use crate::recipe::engine::own_entry::Contents;
use crate::recipe::engine::turn::Request;
use crate::session::{Purpose, may_pass};
use crate::time::BootInstant;

/// The longest that it is tried to give this process its entry. Who waits for that meanwhile fails with it.
const LONGEST_ENTRY: Duration = Duration::from_secs(5);
/// The longest that it is tried to have a claim confirmed.
const LONGEST_CONFIRMING: Duration = Duration::from_secs(5);
/// For how long a claim is given back, at least, if the store refuses: its items are others' after its ttl, but it still counts as
/// one of this process.
const LONGEST_RELEASE: Duration = Duration::from_secs(10 * 60);

impl WorkQueue {
    /// The entry of this process: the one that it has, or a new one.
    pub(super) async fn holder(&self) -> Result<Arc<Grant>> {
        let came = Instant::now();
        let mut holder = self.holder.lock().await;
        if let Some(grant) = holder.as_ref().filter(|grant| grant.is_held()) {
            return Ok(Arc::clone(grant));
        }
        self.engine.no_entry.check(came)?;
        let queue = &self.engine.queue;
        // A stop waits for the claims, and not for this.
        let contents = Contents { mode: Mode::Shared, purpose: Purpose::Sign, ..queue.contents() };
        let request = Request { contents, policy: None };
        let limit = queue.session.ttl().min(LONGEST_ENTRY);
        let begun = Instant::now();
        let granted = queue.acquire_within(&request, Some(limit)).await;
        let granted = granted.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let message = "the store did not answer within the time given";
                queue.session.late("claim", message, None)
            }
            _ => error,
        });
        self.engine.no_entry.note(begun, &granted);
        Ok(Arc::clone(holder.insert(Arc::new(queue.named(granted)?))))
    }

    pub(super) async fn claim_here(
        &self,
        options: &ClaimOptions,
        holder: Arc<Grant>,
        gone: Gone,
    ) -> Result<Option<WorkClaim>> {
        let (id, mut sent) = (ClaimId::random(), BootInstant::now());
        let ask = ask(id, options, holder.own_entry().seq());
        let may_be_replaced = self.session().backend.confirms();
        let taken = match self.take(&ask, Some((&holder, gone)), &mut sent).await {
            // Also if another server is in use by now.
            Ok(Some(seen)) if may_be_replaced || self.session().backend.confirms() => {
                self.confirmed("claim", (id, 0), &holder).await.map(|()| Some(seen))
            }
            taken => taken,
        };
        let taken = match taken {
            Err(error) if error.effect() == Effect::Unknown => {
                drop(self.release_later(id, options.ttl, Some(holder), false));
                return Err(error);
            }
            taken => taken?,
        };
        let Some(seen) = taken else { return Ok(None) };
        // It was made, and is over with its ttl: given back at once, what cannot be read would be the next one's, and so on for ever.
        let view = ClaimView::of(seen).map_err(|error| error.with_effect(Effect::Applied))?;
        let claim = WorkClaim::new(self.clone(), id, view, Arc::clone(&holder), sent);
        // After the claim is noted as held: a stop that has begun before is seen here, and one that begins later sees the claim.
        let admitted = self.engine.queue.named(self.session().admit("claim", Purpose::Work));
        let refused = admitted.err().or_else(|| {
            let reason = holder.own_entry().loss_reason()?;
            Some(holder.loss_error("claim", reason, Effect::None))
        });
        match refused {
            // It was made, and is given back when it is dropped. Others may have the items already; what is dropped gives back no
            // others than its own.
            Some(error) => Err(error.with_effect(Effect::Unknown)),
            None => Ok(Some(claim)),
        }
    }

    /// Waits until everything that a claim has to survive is sure to know it, as one that lasts until then by the queue's clock.
    pub(super) async fn confirmed(
        &self,
        operation: &'static str,
        (id, until): (ClaimId, Micros),
        holder: &Grant,
    ) -> Result<()> {
        let (session, own) = (self.session(), holder.own_entry());
        let unknown = |error: Error| error.with_effect(Effect::Unknown);
        let ttl = session.ttl();
        let limit = Instant::now() + ttl.min(LONGEST_CONFIRMING);
        let mut delays = session.retry_delays(Some(ttl));
        loop {
            // Another server than the one that was written to may have taken over: does it know the claim? Only the server that was
            // looked at may confirm: what is seen there was written before, and is confirmed as well.
            let look = |draft: &mut Draft<'_>| {
                let source = draft.source;
                claim::lasts(draft, id, until).map(|()| source)
            };
            let source = self.engine.look_here(operation, look).await.map_err(unknown)?;
            let confirming = session.backend.confirm(own.entry(), source);
            let error = match session.attempt(Some(ttl), operation, confirming).await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let reason = LossReason::EntryDeleted;
                    return Err(holder.loss_error(operation, reason, Effect::Unknown));
                }
                Err(error) => error,
            };
            let next = Instant::now() + delays.next_delay();
            if !may_pass(&error) || next > limit {
                return Err(unknown(error));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Brings back what the dead had, and claims. `sent`: becomes the moment from which the ttl of the claim counts, which is when the
    /// store was asked for the time at which the items were taken. A claim of many steps may have begun long before. A claim that ends with the
    /// session is given up if its caller has gone before anything is written.
    pub(super) async fn take(
        &self,
        ask: &Ask,
        caller: Option<(&Grant, Gone)>,
        sent: &mut BootInstant,
    ) -> Result<Option<Seen>> {
        let since = Instant::now();
        let (holder, gone) = caller.unzip();
        let step = |draft: &mut Draft<'_>, entries: &[u64]| {
            *sent = draft.sent;
            if holder.is_some() {
                // What is not written when a stop begins is not written at all.
                self.session().admit("claim", Purpose::Work)?;
            }
            if let (Some(seq), Some(holder)) = (ask.holder, holder)
                && entries.binary_search(&seq).is_err()
            {
                let reason = LossReason::EntryDeleted;
                return Err(holder.loss_error("claim", reason, Effect::None).into());
            }
            let taken = bring_back_then(draft, entries, |draft| claim::claim(draft, ask))?;
            if draft.has_nothing() {
                self.engine.found_nothing(draft.asked);
            }
            Ok(taken)
        };
        let taken = match gone {
            Some(gone) => self.engine.run_unless_nothing_since("claim", since, gone, step).await?,
            None => Some(self.engine.run_here("claim", step).await?),
        };
        // Whoever has found nothing does the rest.
        let Some(taken) = taken else { return Ok(None) };
        self.engine.follow();
        if taken.is_some() {
            self.deliver_briefly(duration(ask.ttl / 4)).await;
        } else {
            self.deliver_briefly(DELIVERY).await;
            // Whoever comes next on this host may not know what time it is.
            self.engine.attest("claim").await?;
        }
        Ok(taken)
    }

    /// Ends a claim in the background, also if what this returns is dropped; one that nobody `was_given` was never made. It may be
    /// called in `Drop`.
    pub(super) fn release_later(
        &self,
        id: ClaimId,
        ttl: Duration,
        holder: Option<Arc<Grant>>,
        was_given: bool,
    ) -> JoinHandle<()> {
        let queue = self.clone();
        // Noted before the claim ceases to count as one that is being made.
        let undoing = (!was_given).then(|| self.session().finishing());
        self.session().spawn(async move {
            let _undoing = undoing;
            let mut delays = queue.session().retry_delays(Some(queue.session().ttl()));
            let end = Instant::now().checked_add(ttl.max(LONGEST_RELEASE));
            // Its entry stays until then, so that nobody else has to bring the items back. If the session is lost, the items come back
            // as those of a worker that died: they count as claimed, also if nobody was given the claim.
            let is_held = || holder.as_ref().is_none_or(|holder| holder.is_held());
            while is_held() && end.is_none_or(|end| Instant::now() < end) {
                let step = |draft: &mut Draft<'_>, _: &[u64]| match was_given {
                    true => claim::release(draft, id),
                    false => claim::undo(draft, id),
                };
                match queue.engine.run_here("release", step).await {
                    Ok(_) => return,
                    Err(error) if is_final(&error) => {
                        return tracing::debug!(%error, "a claim ends by itself");
                    }
                    // A full disk or a changed password may pass as well.
                    Err(_) => tokio::time::sleep(delays.next_delay()).await,
                }
            }
        })
    }
}

/// Whether trying again to give a claim back would end no other way.
fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NoSuchClaim
            | ErrorKind::ClaimIdReused
            | ErrorKind::Lost
            | ErrorKind::Closed
            | ErrorKind::Input
            | ErrorKind::Corrupt
    )
}

pub(super) fn ask(id: ClaimId, options: &ClaimOptions, holder: Option<u64>) -> Ask {
    let (ttl, grace) = (micros(options.ttl), micros(options.grace));
    Ask { id, limit: options.limit, ttl, grace, holder }
}
