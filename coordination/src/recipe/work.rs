//! The work queue: items that are claimed, renewed and acknowledged, and can be claimed again when a worker dies.
//!
//! The queue's value is its head, and all else is in records beside it, see [`layout`]. Each of the [`calls`] is a step of
//! [`draft`]: a function of what was read, whose result is written in one compare-and-set. A process that claims has an
//! entry in the queue; when that is gone, so is the process, and the next one that claims takes back what it had.

mod ahead;
mod buckets;
mod calls;
mod claim;
mod claimants;
mod clear;
mod clock;
mod draft;
mod engine;
mod guard;
mod ids;
mod items;
mod layout;
mod letters;
mod look;
mod outage;
mod post;
mod precedence;
mod select;
#[cfg(test)]
mod tests;
mod types;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::claim::{Ask, Seen, bring_back};
pub use self::claimants::Claimant;
use self::clock::longer;
use self::draft::{Draft, Outcome, Step};
use self::engine::{Engine, Look};
pub use self::guard::WorkClaim;
pub use self::ids::{ClaimId, ItemId};
use self::layout::Micros;
use self::letters::Pending;
pub use self::types::{
    Ack, ClaimOptions, ClaimView, Collected, ListOptions, NewItem, WorkItem, WorkLimits, WorkStats,
};
use self::types::{in_range, micros};
use super::engine::grant::Grant;
use super::engine::own_entry::Contents;
use super::engine::turn::Request;
use crate::backend::Mode;
use crate::coordinator::Coordinator;
use crate::env;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::session::{Purpose, Session, Views, may_pass};
use crate::time::BootInstant;

/// The kind of its queue keys.
const KIND: &str = "work";
/// The longest that it is tried to give this process its entry. Who waits for that meanwhile fails with it.
const LONGEST_ENTRY: Duration = Duration::from_secs(5);
/// The longest that it is tried to have a claim confirmed.
const LONGEST_CONFIRMING: Duration = Duration::from_secs(5);
/// The longest that a claim waits for dead letters to be delivered.
const DELIVERY: Duration = Duration::from_secs(1);
/// For how long a claim is given back, at least, if the store refuses: its items are others' after its ttl, but it still counts as
/// one of this process.
const LONGEST_RELEASE: Duration = Duration::from_secs(10 * 60);
/// How long one who waits relies on being told of changes, where it has reason to ask itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long one who waits for an item leaves letters that are not delivered to other processes, before it tries to deliver them. All
/// who wait in one process try no more often together.
const LETTERS_AGAIN: Duration = Duration::from_secs(5);

/// A work queue, which all processes share. Made by [`Coordinator::queue`], without I/O; cheap to clone. Keep it,
/// rather than making one for each call, because it caches what it has read.
///
/// [Items](NewItem) are posted, and handed out in the order of posting to whoever [claims](Self::claim) them. An item
/// that is not [acknowledged](WorkClaim::ack) can be claimed again: when its [`WorkClaim`] is dropped, when the claim's ttl is over, or
/// when the worker's session ends. So each item is worked on at least once, and never by two live claims at a time. If a
/// worker dies between its work and its acknowledgement, the work is done a second time: a resource that must not see it
/// twice keeps the [token](WorkClaim::token) under which an item's work was done, and refuses every other one.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// use coordination::{Ack, ClaimOptions, Coordinator, NewItem};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::new("vol-7"), NewItem::json(&("vol-8", 20))?]).await?;
///
/// let claim = jobs.claim(ClaimOptions::default().ttl(Duration::from_secs(60))).await?;
/// let claim = claim.expect("two items are ready");
/// for item in claim.items() {
///     assert_eq!(claim.ack(item.id()).await?, Ack::Done);
/// }
/// assert_eq!(jobs.stats().await?.total(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct WorkQueue {
    engine: Arc<Engine>,
    /// The entry of this process, with which its claims end.
    holder: Arc<tokio::sync::Mutex<Option<Arc<Grant>>>>,
    limits: Arc<WorkLimits>,
}

impl Coordinator {
    /// The queue of work of this name. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<WorkQueue> {
        let queue = self.queue_of(KIND, name.as_ref())?;
        Ok(WorkQueue {
            engine: Arc::new(Engine::new(queue)),
            holder: Arc::default(),
            limits: Arc::default(),
        })
    }

    /// The names of all work queues that were ever posted to and whose name begins with the coordinator's prefix, without the
    /// prefix, in order. Empty and deleted queues are included.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn queues(&self) -> Result<Vec<String>> {
        self.names("queues", KIND).await
    }
}

impl WorkQueue {
    /// The name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.engine.queue.name()
    }

    /// The same queue with other limits for the calls of this handle. The limits can be narrower than the
    /// [default](WorkLimits::default) ones, but not wider.
    #[must_use]
    pub fn with_limits(&self, limits: WorkLimits) -> Self {
        Self { limits: Arc::new(limits.within_default()), ..self.clone() }
    }

    /// How many bytes of what was read are kept in memory for the next call: up to 4 MiB. For whoever keeps many queues.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ListOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new(vec![0_u8; 100_000])]).await?;
    /// assert!(jobs.cached_bytes() >= 100_000);
    /// jobs.forget_cached();
    /// assert_eq!(jobs.cached_bytes(), 0);
    /// assert_eq!(jobs.list(ListOptions::default()).await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn cached_bytes(&self) -> usize {
        self.engine.cached_bytes()
    }

    /// Frees [those bytes](Self::cached_bytes). The next call reads from the store what it needs. The queue is followed as before.
    pub fn forget_cached(&self) {
        self.engine.forget_cached();
    }

    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&mut Draft<'_>) -> Step<Outcome<T>> + Send + 'static,
    ) -> Result<T> {
        self.engine.run(operation, move |draft, _| step(draft)).await
    }

    /// [`run`](Self::run) for what only reads.
    async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&mut Draft<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let step = move |draft: &mut Draft<'_>, _: &[u64]| step(draft).map(Outcome::Done);
        self.engine.run_reading(operation, step).await
    }

    /// The entry of this process: the one that it has, or a new one.
    async fn holder(&self) -> Result<Arc<Grant>> {
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

    async fn claim_here(
        &self,
        options: &ClaimOptions,
        holder: Arc<Grant>,
    ) -> Result<Option<WorkClaim>> {
        let (id, mut sent) = (ClaimId::random(), BootInstant::now());
        let ask = ask(id, options, holder.own_entry().seq());
        let may_be_replaced = self.session().backend.confirms();
        let taken = match self.take(&ask, Some(&holder), &mut sent).await {
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
        let view = ClaimView::of(seen)?;
        let claim = WorkClaim::new(self.clone(), id, view, Arc::clone(&holder), sent);
        // After the claim is noted as held: a stop that has begun before is seen here, and one that begins later sees the claim.
        let admitted = self.session().admit("claim", Purpose::Work);
        self.engine.queue.named(admitted)?;
        match holder.own_entry().loss_reason() {
            // Others may have the items already; what is dropped gives back no others than its own.
            Some(reason) => Err(holder.loss_error("claim", reason, Effect::None)),
            None => Ok(Some(claim)),
        }
    }

    /// Waits until everything that a claim has to survive is sure to know it, as one that lasts until then by the queue's clock.
    async fn confirmed(
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
    /// store was asked for the time at which the items were taken. A claim of many steps may have begun long before.
    async fn take(
        &self,
        ask: &Ask,
        holder: Option<&Grant>,
        sent: &mut BootInstant,
    ) -> Result<Option<Seen>> {
        let since = Instant::now();
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
        let taken = match holder {
            Some(_) => self.engine.run_unless_nothing_since("claim", since, step).await?,
            None => Some(self.engine.run_here("claim", step).await?),
        };
        // Whoever has found nothing does the rest.
        let Some(taken) = taken else { return Ok(None) };
        self.engine.follow();
        if taken.is_some() {
            self.deliver_briefly(types::duration(ask.ttl / 4)).await;
        } else {
            self.deliver_briefly(DELIVERY).await;
            // Whoever comes next on this host may not know what time it is.
            self.engine.attest("claim").await?;
        }
        Ok(taken)
    }

    /// Brings letters to the queues where they are to go: for so long at the most, and then in the background. The time of a claim
    /// is running, or an item may come for which this caller waits. What fails is tried again by the next claim, and by those who
    /// [wait](Self::until_ready) for an item.
    async fn deliver_briefly(&self, limit: Duration) {
        if !self.engine.has_letters() {
            return;
        }
        let queue = self.clone();
        let delivering = self.session().spawn(async move {
            // Nothing is to be done if that is under way.
            if let Ok(mut to) = queue.engine.delivering.try_lock() {
                queue.deliver_here(&mut to).await;
            }
        });
        drop(tokio::time::timeout(limit.min(DELIVERY), delivering).await);
    }

    async fn deliver_here(&self, to: &mut Option<Arc<Engine>>) {
        if let Err(error) = self.try_to_deliver(to).await {
            tracing::warn!(%error, queue = self.name(), "dead letters are not delivered yet");
        }
    }

    async fn try_to_deliver(&self, to: &mut Option<Arc<Engine>>) -> Result<()> {
        while self.engine.has_letters() {
            let pending = |draft: &mut Draft<'_>, _: &[u64]| {
                let id = draft.head.id;
                letters::pending(draft).map(|letters| letters.map(|letters| (id, letters)))
            };
            let (id, Pending { letters, upto }) = self.engine.run_here("deliver", pending).await?;
            let Some((_, first)) = letters.first() else {
                let Some(missing) = upto else { return Ok(()) };
                tracing::warn!(queue = self.name(), upto = missing, "dead letters are missing");
                let step = |draft: &mut Draft<'_>, _: &[u64]| letters::delivered(draft, missing);
                self.engine.run_here("deliver", step).await?;
                continue;
            };
            let last = letters.last().map_or(0, |(number, _)| *number);
            let before = to.take().filter(|before| before.queue.name() == first.queue);
            let other = match before {
                Some(before) => before,
                None => Arc::new(Engine::new(self.engine.queue.of_name(&first.queue)?)),
            };
            let other = to.insert(other);
            let from = format!("{} {id:x}", self.name());
            let marks: Vec<u64> = letters.iter().map(|_| env::rng().random()).collect();
            let step =
                |draft: &mut Draft<'_>, _: &[u64]| letters::receive(draft, &from, &letters, &marks);
            let left = other.run_here("deliver", step).await?;
            other.follow();
            other.tidy_later(left);
            let step = |draft: &mut Draft<'_>, _: &[u64]| letters::delivered(draft, last);
            self.engine.run_here("deliver", step).await?;
        }
        Ok(())
    }

    /// Ends a claim in the background, also if what this returns is dropped; one that nobody `was_given` was never made. It may be
    /// called in `Drop`.
    fn release_later(
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
            // Its entry stays until then, so that nobody else has to bring the items back.
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

    /// Waits until an item may be ready, or what was known is old.
    async fn until_ready(&self, views: &mut Views) -> Result<()> {
        let mut view = tokio::select! {
            next = views.next() => self.engine.queue.named(next)?,
            // The queue is as it was: perhaps it was looked at too soon, by another clock.
            () = self.engine.queue.out_of_time(Some(LOOK_AGAIN)) => return Ok(()),
        };
        let mut letters_at = Instant::now() + LETTERS_AGAIN;
        loop {
            let look = self.engine.read("claim", &view.listing, view.came.elapsed());
            let look = self.engine.queue.named(look)?;
            let wake = match is_ready(&look) {
                Ok(()) if self.engine.is_new(&look) => return Ok(()),
                // It is told of late, or the store was given back older data.
                Ok(()) => Some(LOOK_AGAIN),
                Err(wake) => wake.map(|wake| wait_for(wake, &look)),
            };
            let until = letters_at.saturating_duration_since(Instant::now());
            let letters_in = look.head.has_letters().then_some(until);
            tokio::select! {
                next = views.next() => view = self.engine.queue.named(next)?,
                () = self.engine.queue.out_of_time(wake), if wake.is_some() => return Ok(()),
                // Nobody else may come who would deliver the letters. Whatever else happens in the queue puts this off no longer.
                () = self.engine.queue.out_of_time(letters_in), if letters_in.is_some() => {
                    letters_at = Instant::now() + LETTERS_AGAIN;
                    if self.engine.is_delivery_due(LETTERS_AGAIN) {
                        self.engine.note_letters(&look.head);
                        let queue = self.clone();
                        // On the session's runtime, as the caller may have none.
                        let delivering = async move {
                            queue.deliver_briefly(DELIVERY).await;
                            Ok(())
                        };
                        self.engine.queue.run("claim", delivering).await?;
                    }
                }
            }
        }
    }

    fn session(&self) -> &Arc<Session> {
        &self.engine.queue.session
    }

    fn check_claim(&self, options: &ClaimOptions) -> Result<()> {
        self.engine.queue.named(self.session().admit("claim", Purpose::Work))?;
        let of_ttl = in_range("ttl", &options.ttl, &self.limits.claim_ttl);
        let of_grace = in_range("grace", &options.grace, &self.limits.grace);
        let of_limit = in_range("limit", &options.limit, &self.limits.limit);
        self.input("claim", of_ttl.and(of_grace).and(of_limit))
    }

    fn input(&self, operation: &'static str, outcome: Result<(), String>) -> Result<()> {
        outcome.map_err(|message| self.refused(operation, message))
    }

    fn refused(&self, operation: &'static str, message: String) -> Error {
        self.engine.queue.error(ErrorKind::Input, operation, message)
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

fn ask(id: ClaimId, options: &ClaimOptions, holder: Option<u64>) -> Ask {
    let (ttl, grace) = (micros(options.ttl), micros(options.grace));
    Ask { id, limit: options.limit, ttl, grace, holder }
}

fn bring_back_then<T>(
    draft: &mut Draft<'_>,
    entries: &[u64],
    step: impl FnOnce(&mut Draft<'_>) -> Step<Outcome<T>>,
) -> Step<Outcome<T>> {
    match bring_back(draft, entries)? {
        Outcome::Done(()) => {
            // Otherwise the step would pass over the pages on which nothing but that is ready.
            draft.sum_up()?;
            step(draft)
        }
        Outcome::Again => Ok(Outcome::Again),
    }
}

/// Whether an item may be ready; if not, when the next one may be by time alone.
fn is_ready(look: &Look) -> Result<(), Option<Micros>> {
    let (now, live) = (look.moment.now, &look.head.live);
    let is_dead = |holder: &u64| look.entries.binary_search(holder).is_err();
    let groups = live.groups.values().filter(|group| group.is_alive(now));
    match live.holders.iter().any(is_dead) || groups.clone().any(|group| group.may_be_ready(now)) {
        true => Ok(()),
        false => Err(groups.map(|group| group.wake).min().filter(|wake| *wake < Micros::MAX)),
    }
}

/// How long to wait by our own clock until then.
fn wait_for(wake: Micros, look: &Look) -> Duration {
    let left = wake.saturating_sub(look.moment.now);
    types::duration(if look.has_clock { left } else { longer(left) })
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.name()).finish_non_exhaustive()
    }
}
